"""Activations: the one table of what a layer applies to each element of Y·W + b.

A row is a class: what it computes, as a formula from which the code of kernels is generated; what is known of it; and
what it is called elsewhere. Nothing else in the package lists activations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sparsenn.formats import Array
from sparsenn.layers.elementwise import Elementwise, Foreign


@dataclass(frozen=True)
class ReLU(Elementwise):
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

    name = "relu"
    formula = "0 if z < 0 else (p if z > p else z)"
    slope = "(1 if y < p else 0) if y > 0 else 0"  # 0 at both corners
    is_curved = False
    elsewhere = (
        Foreign("onnx", "Relu"),
        Foreign("torch", "ReLU"),
        Foreign("aten", "relu"),
        Foreign("keras_function", "relu"),
        Foreign("sklearn", "relu"),
    )
    clip: float | None = None

    @property
    def bounds(self) -> tuple[float, float]:
        """Return 0, and the clip or infinity."""
        return 0.0, self.parameter

    @property
    def is_homogeneous(self) -> bool:
        """Return whether there is no clip."""
        return self.clip is None

    def __call__(self, z: Array) -> Array:
        """Apply the function to an array of any shape; the floating-point type stays the same."""
        rectified = np.maximum(z, z.dtype.type(0))  # the formula would take two more passes
        clipped: Array = rectified if self.clip is None else np.minimum(rectified, z.dtype.type(self.clip))
        return clipped

    def __str__(self) -> str:
        return "relu" if self.clip is None else f"relu clipped at {self.clip:g}"


@dataclass(frozen=True)
class Sigmoid(Elementwise):
    """1 / (1 + exp(-z)), computed without overflow."""

    name = "sigmoid"
    formula = "e = exp(-abs(z)); (1 if z >= 0 else e) / (1 + e)"
    slope = "y * (1 - y)"
    bounds = (0.0, 1.0)
    elsewhere = (
        Foreign("onnx", "Sigmoid"),
        Foreign("torch", "Sigmoid"),
        Foreign("aten", "sigmoid"),
        Foreign("keras_function", "sigmoid"),
        Foreign("sklearn", "logistic"),
    )


@dataclass(frozen=True)
class Tanh(Elementwise):
    """The hyperbolic tangent."""

    name = "tanh"
    formula = "tanh(z)"
    slope = "1 - y * y"
    bounds = (-1.0, 1.0)
    elsewhere = (
        Foreign("onnx", "Tanh"),
        Foreign("torch", "Tanh"),
        Foreign("aten", "tanh"),
        Foreign("keras_function", "tanh"),
        Foreign("sklearn", "tanh"),
    )


@dataclass(frozen=True)
class Identity(Elementwise):
    """The activation z itself: that of a layer without one."""

    name = "identity"
    formula = "z"
    slope = "1"
    is_curved = False
    is_homogeneous = True
    elsewhere = (Foreign("torch", "Identity"), Foreign("keras_function", "linear"), Foreign("sklearn", "identity"))

    def __call__(self, z: Array) -> Array:
        """Return the array unchanged."""
        return z


@dataclass(frozen=True)
class ELU(Elementwise):
    """The activation z above zero, and alpha (exp(z) - 1) below.

    Parameters
    ----------
    alpha : float, default 1.0
        The limit below zero, negated; a positive number.
    """

    name = "elu"
    at_zero = ReLU
    formula = "z if z > 0 else p * expm1(z)"
    slope = "1 if y > 0 else y + p"
    elsewhere = (
        Foreign("onnx", "Elu", "alpha", 1.0),
        Foreign("torch", "ELU", "alpha"),
        Foreign("aten", "elu", "alpha", conditions=(("scale", 1, 1.0), ("input_scale", 1, 1.0))),
        Foreign("keras", "ELU", "alpha", 1.0),
        Foreign("keras_function", "elu", "alpha", 1.0),
    )
    alpha: float = 1.0

    @property
    def bounds(self) -> tuple[float, float]:
        """Return -alpha and infinity."""
        return -self.alpha, math.inf

    @property
    def gain(self) -> float:
        """Return alpha, or 1 if that is more."""
        return max(1.0, self.alpha)


@dataclass(frozen=True)
class CELU(Elementwise):
    """The activation z above zero, and alpha (exp(z / alpha) - 1) below, without a corner.

    Parameters
    ----------
    alpha : float, default 1.0
        The limit below zero, negated; a positive number.
    """

    name = "celu"
    formula = "z if z > 0 else p * expm1(z / p)"
    slope = "1 if y > 0 else y / p + 1"
    elsewhere = (
        Foreign("onnx", "Celu", "alpha", 1.0),
        Foreign("torch", "CELU", "alpha"),
        Foreign("aten", "celu", "alpha"),
        Foreign("keras_function", "celu", "alpha", 1.0),
    )
    alpha: float = 1.0

    @property
    def bounds(self) -> tuple[float, float]:
        """Return -alpha and infinity."""
        return -self.alpha, math.inf


@dataclass(frozen=True)
class SELU(Elementwise):
    """The activation λ z above zero, and λ α (exp(z) - 1) below, with the λ and α of self-normalising networks."""

    name = "selu"
    formula = "1.0507009873554805 * z if z > 0 else 1.7580993408473766 * expm1(z)"
    slope = "1.0507009873554805 if y > 0 else y + 1.7580993408473766"
    bounds = (-1.7580993408473766, math.inf)
    gain = 1.7580993408473766
    elsewhere = (
        Foreign(
            "onnx",
            "Selu",
            conditions=(
                ("alpha", 1.6732632423543772, 1.6732632423543772),
                ("gamma", 1.0507009873554805, 1.0507009873554805),
            ),
        ),
        Foreign("torch", "SELU"),
        Foreign("aten", "selu"),
        Foreign("keras_function", "selu"),
    )


@dataclass(frozen=True)
class SiLU(Elementwise):
    """The activation z / (1 + exp(-z)), which is called Swish, too."""

    name = "silu"
    formula = "e = exp(-abs(z)); 0 if z < -1000 else (z if z >= 0 else z * e) / (1 + e)"
    bounds = (-0.2785, math.inf)
    is_monotone = False
    elsewhere = (
        Foreign("onnx", "Sigmoid", is_gate=True),
        Foreign("onnx", "Swish", conditions=(("alpha", 1.0, 1.0),)),
        Foreign("torch", "SiLU"),
        Foreign("aten", "silu"),
        Foreign("keras_function", "silu"),
        Foreign("keras_function", "swish"),
    )


@dataclass(frozen=True)
class GELU(Elementwise):
    """The activation z Φ(z), where Φ is the distribution function of normal numbers."""

    name = "gelu"
    formula = "0 if z < -40 else 0.5 * z * erfc(-0.7071067811865476 * z)"
    bounds = (-0.17, math.inf)
    is_monotone = False
    elsewhere = (
        Foreign("onnx", "Gelu", conditions=(("approximate", "none", "none"),)),
        Foreign("torch", "GELU", conditions=(("approximate", "none", "none"),)),
        Foreign("aten", "gelu", conditions=(("approximate", "none", "none"),)),
        Foreign("keras_function", "gelu", conditions=(("approximate", False, False),)),
    )


@dataclass(frozen=True)
class GELUTanh(Elementwise):
    """The approximate `GELU`: z (1 + tanh(√(2 / π) (z + 0.044715 z³))) / 2."""

    name = "gelu_tanh"
    formula = (
        "e = exp(-1.5957691216057308 * abs(z) * (1 + 0.044715 * z * z));"
        "0 if z < -40 else (z if z >= 0 else z * e) / (1 + e)"
    )
    bounds = (-0.1701, math.inf)
    is_monotone = False
    elsewhere = (
        Foreign("onnx", "Gelu", conditions=(("approximate", "none", "tanh"),)),
        Foreign("torch", "GELU", conditions=(("approximate", "none", "tanh"),)),
        Foreign("aten", "gelu", conditions=(("approximate", "none", "tanh"),)),
        Foreign("keras_function", "gelu", conditions=(("approximate", False, True),)),
    )


@dataclass(frozen=True)
class HardSwish(Elementwise):
    """The activation z min(1, max(0, z / 6 + 1/2))."""

    name = "hard_swish"
    formula = "0 if z <= -3 else (z if z >= 3 else z * (z + 3) / 6)"
    bounds = (-0.3751, math.inf)
    is_monotone = False
    elsewhere = (
        Foreign("onnx", "HardSwish"),
        Foreign("torch", "Hardswish"),
        Foreign("aten", "hardswish"),
        Foreign("keras_function", "hard_silu"),
        Foreign("keras_function", "hard_swish"),
    )


@dataclass(frozen=True)
class HardSigmoid(Elementwise):
    """The activation min(1, max(0, alpha z + 1/2)).

    Parameters
    ----------
    alpha : float, default 1/6
        The slope; a positive number.
    """

    name = "hard_sigmoid"  # Keras's has alpha 0.2 before version 3, and 1/6 since: it is none of these names
    formula = "s = p * z + 0.5; 0 if s < 0 else (1 if s > 1 else s)"
    slope = "(p if y < 1 else 0) if y > 0 else 0"
    bounds = (0.0, 1.0)
    elsewhere = (
        Foreign("onnx", "HardSigmoid", "alpha", 0.2, conditions=(("beta", 0.5, 0.5),)),
        Foreign("torch", "Hardsigmoid"),
        Foreign("aten", "hardsigmoid"),
    )
    alpha: float = 1 / 6

    @property
    def gain(self) -> float:
        """Return alpha."""
        return self.alpha


@dataclass(frozen=True)
class LeakyReLU(Elementwise):
    """The activation z above zero, and alpha z below; a PReLU with one slope for all is this, too.

    Parameters
    ----------
    alpha : float, default 0.01
        The slope below zero; any number but zero, which a `ReLU` has.
    """

    name = "leaky_relu"
    at_zero = ReLU
    formula = "z if z > 0 else p * z"
    slope = "1 if y > 0 else p"
    is_homogeneous = True
    is_signed = True
    elsewhere = (
        Foreign("onnx", "LeakyRelu", "alpha", 0.01),
        Foreign("torch", "LeakyReLU", "negative_slope"),
        Foreign("aten", "leaky_relu", "negative_slope"),
        Foreign("keras_function", "leaky_relu", "negative_slope", 0.2),
    )
    alpha: float = 0.01

    @property
    def bounds(self) -> tuple[float, float]:
        """Return 0 and infinity for a negative alpha, and infinities for others."""
        return (0.0 if self.alpha < 0 else -math.inf), math.inf

    @property
    def gain(self) -> float:
        """Return the size of alpha, or 1 if that is more."""
        return max(1.0, abs(self.alpha))

    @property
    def is_monotone(self) -> bool:
        """Return whether alpha is positive."""
        return self.alpha > 0

    @property
    def is_trainable(self) -> bool:
        """Return whether the sign of a value is that of the sum."""
        return self.alpha > 0


@dataclass(frozen=True)
class Softplus(Elementwise):
    """The activation log(1 + exp(beta z)) / beta.

    Parameters
    ----------
    beta : float, default 1.0
        The larger, the nearer to a `ReLU`; a positive number.
    """

    name = "softplus"
    formula = "(z if z > 0 else 0) + log1p(exp(-abs(p * z))) / p"
    slope = "-expm1(-p * y)"
    bounds = (0.0, math.inf)
    elsewhere = (
        Foreign("onnx", "Softplus"),
        Foreign("torch", "Softplus", "beta", conditions=(("threshold", 20, 20.0),)),
        Foreign("aten", "softplus", "beta", conditions=(("threshold", 20, 20.0),)),
        Foreign("keras_function", "softplus"),
    )
    beta: float = 1.0


@dataclass(frozen=True)
class Mish(Elementwise):
    """The activation z tanh(log(1 + exp(z)))."""

    name = "mish"
    formula = (
        "e = exp(-abs(z)); n = 1 + 2 * e; m = e * (e + 2);"
        "0 if z < -1000 else z * (n if z >= 0 else m) / (n + 2 * e * e if z >= 0 else m + 2)"
    )
    bounds = (-0.3089, math.inf)
    is_monotone = False
    elsewhere = (
        Foreign("onnx", "Mish"),
        Foreign("torch", "Mish"),
        Foreign("aten", "mish"),
        Foreign("keras_function", "mish"),
    )


@dataclass(frozen=True)
class Softsign(Elementwise):
    """The activation z / (1 + abs(z))."""

    name = "softsign"
    formula = "a = abs(z); (1 if z > 0 else -1) if a > 1e30 else z / (1 + a)"
    slope = "(1 - abs(y)) * (1 - abs(y))"
    bounds = (-1.0, 1.0)
    elsewhere = (
        Foreign("onnx", "Softsign"),
        Foreign("torch", "Softsign"),
        Foreign("keras_function", "softsign"),
    )


ACTIVATIONS: tuple[type[Elementwise], ...] = (
    *(ReLU, Sigmoid, Tanh, Identity, ELU, CELU, SELU, SiLU, GELU, GELUTanh, HardSwish, HardSigmoid, LeakyReLU),
    *(Softplus, Mish, Softsign),
)
"""The table: a row's place is its code in kernels."""
