"""Activation functions: what a layer applies to each element of Y·W + b."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from sparsenn.errors import InputError, unknown_name
from sparsenn.formats import Array
from sparsenn.formats.arrays import real_number

__all__ = ["Activation", "Identity", "ReLU", "Sigmoid", "Tanh", "activation_named", "check_activation"]

FLOAT32_MAX = float(np.finfo(np.float32).max)
FLOAT32_LEAST = float(np.finfo(np.float32).tiny)
"""The smallest normal number; GPUs take smaller ones for zero."""


class Activation(Protocol):
    """An element-wise function; `name` identifies it in files, plans and kernels."""

    name: ClassVar[str]

    def __call__(self, z: Array) -> Array:
        """Apply the function to an array of any shape; the floating-point type is kept."""
        ...


@dataclass(frozen=True)
class ReLU:
    """The activation max(0, z), and min(clip, ·) of that where a clip is given (the challenge clips at 32).

    Parameters
    ----------
    clip : float, optional
        The largest value that is given on.

    Raises
    ------
    InputError
        The clip is not a positive number within the normal numbers of float32.
    """

    name: ClassVar[str] = "relu"
    clip: float | None = None

    def __post_init__(self) -> None:
        if self.clip is None:
            return
        clip = real_number(self.clip, "the clip of a ReLU", InputError)
        if not FLOAT32_LEAST <= clip <= FLOAT32_MAX:
            raise InputError(f"a ReLU clip of {clip} is not in {FLOAT32_LEAST:.4g} to {FLOAT32_MAX:.4g}")
        object.__setattr__(self, "clip", clip)

    def __call__(self, z: Array) -> Array:
        """Apply the function to an array of any shape; the floating-point type is kept."""
        rectified = np.maximum(z, z.dtype.type(0))
        clipped: Array = rectified if self.clip is None else np.minimum(rectified, z.dtype.type(self.clip))
        return clipped

    def __str__(self) -> str:
        return "relu" if self.clip is None else f"relu clipped at {self.clip:g}"


@dataclass(frozen=True)
class Sigmoid:
    """1 / (1 + exp(-z)), computed without overflow."""

    name: ClassVar[str] = "sigmoid"

    def __call__(self, z: Array) -> Array:
        """Apply the function to an array of any shape; the floating-point type is kept."""
        decay = np.exp(-np.abs(z))
        sigmoid: Array = np.where(z >= 0, z.dtype.type(1), decay) / (1 + decay)
        return sigmoid

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Tanh:
    """The hyperbolic tangent."""

    name: ClassVar[str] = "tanh"

    def __call__(self, z: Array) -> Array:
        """Apply the function to an array of any shape; the floating-point type is kept."""
        result: Array = np.tanh(z)
        return result

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Identity:
    """The activation z itself: that of a layer without one."""

    name: ClassVar[str] = "identity"

    def __call__(self, z: Array) -> Array:
        """Return the array unchanged."""
        return z

    def __str__(self) -> str:
        return self.name


_KINDS: dict[str, Any] = {kind.name: kind for kind in (ReLU, Sigmoid, Tanh, Identity)}
_NAMED = {**_KINDS, "none": Identity}


def activation_named(name: str, clip: float | None = None) -> Activation:
    """Return the activation called `name`; `clip` belongs to ReLU alone, and `none` is another name of Identity.

    Raises
    ------
    UsageError
        The name is unknown.
    InputError
        A clip is given to an activation that has none, or is one that `ReLU` refuses.
    """
    if name not in _NAMED:
        raise unknown_name("activation", name, _NAMED)
    if clip is None:
        activation: Activation = _NAMED[name]()
        return activation
    if name != ReLU.name:
        raise InputError(f"{name} takes no clip; only {ReLU.name} does")
    return ReLU(clip)


def check_activation(activation: Any) -> None:
    """Refuse what is no activation, such as a name or a class.

    Raises
    ------
    InputError
        It cannot be called, has no name, or is a class.
    """
    if callable(activation) and isinstance(getattr(activation, "name", None), str) and not isinstance(activation, type):
        return
    found = activation.__name__ if isinstance(activation, type) else activation
    kinds = {key: kind for kind in _KINDS.values() for key in (kind.name, kind.__name__)}
    kind = kinds.get(found, ReLU) if isinstance(found, str) else ReLU
    raise InputError(f"the activation is {activation!r}; take an object, such as sparsenn.{kind.__name__}()")
