"""What an activation is: a row of the table in `sparsenn.layers.activation`."""

from __future__ import annotations

import math
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from sparsenn.errors import InputError
from sparsenn.formats import Array
from sparsenn.formats.arrays import real_number
from sparsenn.layers.formulas import evaluate

FLOAT32_MAX = float(np.finfo(np.float32).max)
HALF_MAX = 65_504.0
FLOAT32_LEAST = float(np.finfo(np.float32).tiny)
"""The smallest normal number; GPUs take smaller ones for zero."""


class Activation(Protocol):
    """An element-wise function; `name` identifies it in files, plans and kernels."""

    name: ClassVar[str]

    def __call__(self, z: Array) -> Array:
        """Apply the function to an array of any shape; the floating-point type stays the same."""
        ...


class Foreign(NamedTuple):
    """What another framework calls an activation."""

    framework: str
    """onnx, torch (a module), aten (an operator of PyTorch), keras (a layer), keras_function, or sklearn."""
    name: str
    parameter: str = ""
    """What it calls the parameter; nothing where it has none."""
    default: float | None = None
    """What the parameter is where it is not given; None where it always is."""
    conditions: tuple[tuple[str, Any, Any], ...] = ()
    """Names of further attributes, what they are where they are not given, and what they must be."""
    is_gate: bool = False
    """Whether it is that times z; such names are for writing alone."""


class Elementwise:
    """A row of the table: what is the same for most activations.

    A row has one parameter at most, which is a field of its dataclass; kernels take it as one float32.
    """

    name: ClassVar[str]
    """In files, plans, and, in capitals, the kernels."""

    formula: ClassVar[str]
    """The function as `sparsenn.layers.formulas` has it. It must give NaN for NaN, and its limits for infinities."""

    slope: ClassVar[str | None] = None
    """The derivative where the value is y, or None: such layers are not trained."""

    is_curved: ClassVar[bool] = True
    """Whether it takes more than bringing numbers between two bounds, which kernels do where they write sums."""

    elsewhere: ClassVar[tuple[Foreign, ...]] = ()
    """Its names in other frameworks."""

    at_zero: ClassVar[type[Elementwise] | None] = None
    """What it is where another framework's parameter is zero, which is none of its own."""

    is_signed: ClassVar[bool] = False
    """Whether the parameter may be negative."""

    def __post_init__(self) -> None:
        """Refuse a parameter that float32 does not hold as a normal number."""
        if self.argument is None:
            return
        (name,), kind = parameters(type(self)), type(self).__name__
        value = real_number(self.argument, f"the {name} of a {kind}", InputError)
        if not FLOAT32_LEAST <= (abs(value) if self.is_signed else value) <= FLOAT32_MAX:
            signs = "the size of " if self.is_signed else ""
            raise InputError(f"{signs}a {kind} {name} of {value} is not in {FLOAT32_LEAST:.4g} to {FLOAT32_MAX:.4g}")
        object.__setattr__(self, name, value)

    @classmethod
    def takes_parameter(cls) -> bool:
        """Return whether it has a parameter."""
        return bool(parameters(cls))

    @property
    def argument(self) -> float | None:
        """Return the parameter; None where there is none, or it is not given."""
        values: list[float | None] = [getattr(self, name) for name in parameters(type(self))]
        return values[0] if values else None

    @property
    def parameter(self) -> float:
        """Return the parameter as kernels take it; infinity where there is none."""
        return math.inf if self.argument is None else self.argument

    @property
    def bounds(self) -> tuple[float, float]:
        """Return what no value is below, and what none is above."""
        return -math.inf, math.inf

    @property
    def gain(self) -> float:
        """Return how far f(z) is from f(0) at most, as a multiple of the size of z."""
        return 1.0

    @property
    def size_of_zero(self) -> float:
        """Return the size of f(0)."""
        return abs(float(self(np.zeros(()))))

    def largest(self, size: float) -> float:
        """Return the largest size of f(z) where that of z is at most `size`, which may be infinite."""
        low, high = self.bounds
        return min(max(-low, high), self.gain * size + self.size_of_zero)

    @property
    def is_trainable(self) -> bool:
        """Return whether layers with it can be trained: whether its derivative is a function of its values."""
        return self.slope is not None

    @property
    def is_homogeneous(self) -> bool:
        """Return whether f(c z) = c f(z) for any c > 0."""
        return False

    @property
    def is_monotone(self) -> bool:
        """Return whether it never falls, so that the largest number of several stays so."""
        return True

    def __call__(self, z: Array) -> Array:
        """Apply the function to an array of any shape; the floating-point type stays the same."""
        return evaluate(self.formula, z=z, p=self.parameter)

    def slope_at(self, y: Array) -> Array:
        """Return the derivative at places where the value is y."""
        assert self.slope is not None, "layers with such an activation are not trained"
        return evaluate(self.slope, y=y, p=self.parameter)

    def __str__(self) -> str:
        return self.name if self.argument is None else f"{self.name}({self.argument:g})"


def parameters(kind: type[Elementwise]) -> tuple[str, ...]:
    """Return what a row calls its parameter; nothing where it has none."""
    names: tuple[str, ...] = kind.__match_args__  # type: ignore[attr-defined]
    return names  # of its fields, in a tenth of the time of `dataclasses.fields`
