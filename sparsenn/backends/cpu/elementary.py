"""Elementary functions without branches and calls, so that loops over them are compiled to vectors.

They have the names that formulas of activations use. `exp` and `erfc` are computed in float32, the others in float64,
which makes up for differences of nearly equal numbers. `erfc` is within four units in the last place of the exact
value, the others are within three.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from sparsenn.runtime.jit import always_inlined, uncontracted

__all__ = ["erfc", "exp", "expm1", "log1p", "nan", "tanh"]

nan = math.nan

SINGLE, DOUBLE = np.float32(1.5 * 2.0**23), 1.5 * 2.0**52
"""Added to a number, they leave its nearest integer in the last bits of the sum."""

LOG2E, LN2 = math.log2(math.e), math.log(2)
LN2_HIGH = np.float32(0.693359375)  # few bits, so that products with integers up to 127 are exact
LN2_LOW = np.float32(LN2 - 0.693359375)

LEAST, MOST = np.float32(-103.97208), np.float32(88.72283)  # exponents whose powers are numbers of float32
SMALL = np.float32(-80)  # below which a power is computed 2^64 times as large first, as it may be no normal number

MOST_SINGLE = float(np.finfo(np.float32).max)
TINY = 1e-8  # up to which expm1, log1p and tanh are their argument

ERFC = tuple(
    np.float32(each)
    for each in (
        0.5107913613319397, 0.6871606707572937, 0.5589433312416077, 0.1457701325416565, -0.17203715443611145,
        -0.10370635986328125, 0.0979343131184578, 0.054325979202985764, -0.0763169378042221, -0.016232265159487724,
        0.040484312921762466,
    )
)  # fmt: skip
"""erfc(x) exp(x²) / t by powers of t - 1/2, where t = 1 / (1 + x / 2), for x from 0 to 14: the least largest relative
error, 5·10⁻⁹, beside SciPy's erfcx."""

COARSE = np.float32(1.5 * 2.0**15)  # added to a number below 2^14, it leaves a multiple of 1/256


def _scaling(kind: Any, word: Any, mantissa: int) -> Any:
    """Return a function that multiplies a number by two to the power of the integer in another's last bits."""

    def scaled(typing: Any, number: Any, power: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            number, power = (builder.bitcast(each, word) for each in arguments)
            shifted = builder.shl(power, ir.Constant(word, mantissa))
            return builder.bitcast(builder.add(number, shifted), context.get_value_type(kind))

        return kind(kind, kind), generate

    return intrinsic(scaled)


def _power_of_two(typing: Any, number: Any) -> Any:
    """Return 1.5 * 2^52 more than the power of two that leaves a positive number between sqrt(1/2) and sqrt(2)."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = ir.IntType(64)
        half, one, zero = (int(np.float64(each).view(np.int64)) for each in (math.sqrt(0.5), 1.0, DOUBLE))
        rounded = builder.add(builder.bitcast(arguments[0], word), ir.Constant(word, one - half))
        power = builder.lshr(rounded, ir.Constant(word, 52))
        return builder.bitcast(builder.add(power, ir.Constant(word, zero - 1023)), ir.DoubleType())

    return types.float64(types.float64), generate


_exponent = intrinsic(_power_of_two)
_scaled_single = _scaling(types.float32, ir.IntType(32), 23)
_scaled_double = _scaling(types.float64, ir.IntType(64), 52)


@uncontracted
def exp(z: Any) -> Any:
    """Return the exponential of a float32 number."""
    x = np.float32(min(max(z, LEAST), MOST))
    power = x * np.float32(LOG2E) + SINGLE
    whole = power - SINGLE
    r = x - whole * LN2_HIGH - whole * LN2_LOW
    p = np.float32(1 / 5040)
    p = p * r + np.float32(1 / 720)
    p = p * r + np.float32(1 / 120)
    p = p * r + np.float32(1 / 24)
    p = p * r + np.float32(1 / 6)
    p = p * r + np.float32(1 / 2)
    p = p * r * r + r + np.float32(1)
    larger, factor = np.float32(64 if x < SMALL else 0), np.float32(2.0**-64 if x < SMALL else 1)
    found = _scaled_single(p, power + larger) * factor
    found = np.float32(0) if z < LEAST else found
    found = np.float32(np.inf) if z > MOST else found
    return z if z != z else found


@uncontracted
def _power(z: Any) -> Any:
    """Return the exponential of a float64 number between -700 and 700."""
    power = z * LOG2E + DOUBLE
    r = z - (power - DOUBLE) * LN2
    p = 1 / 40320
    p = p * r + 1 / 5040
    p = p * r + 1 / 720
    p = p * r + 1 / 120
    p = p * r + 1 / 24
    p = p * r + 1 / 6
    p = p * r + 1 / 2
    return _scaled_double(p * r * r + r + 1, power)


@uncontracted
def expm1(z: Any) -> Any:
    """Return the exponential of a number, less 1."""
    x = np.float64(min(max(z, np.float32(-100)), np.float32(100)))
    found = _power(x) - 1
    return z if abs(x) < TINY or z != z else found


@uncontracted
def log1p(z: Any) -> Any:
    """Return the logarithm of a number plus 1."""
    x = np.float64(z)
    power = _exponent(x + 1) - DOUBLE
    m = _scaled_double(x + 1, DOUBLE - power)
    s = (m - 1) / (m + 1)
    t = s * s
    p = 1 / 11
    p = p * t + 1 / 9
    p = p * t + 1 / 7
    p = p * t + 1 / 5
    p = p * t + 1 / 3
    found = power * LN2 + 2 * s * (p * t + 1)
    found = -np.inf if x == -1 else found
    found = np.nan if x < -1 else found
    return z if abs(x) < TINY or x > MOST_SINGLE or z != z else found


@uncontracted
def tanh(z: Any) -> Any:
    """Return the hyperbolic tangent of a number."""
    x = np.float64(min(abs(z), np.float32(20)))
    e = _power(-2 * x)
    found = (1 - e) / (1 + e)
    found = -found if z < 0 else found
    return z if x < TINY or z != z else found


@uncontracted
def erfc(z: Any) -> Any:
    """Return 1 less the error function of a float32 number."""
    always_inlined()
    half, one = np.float32(0.5), np.float32(1)
    x = min(abs(z), np.float32(14))
    t = one / (one + x * half)
    p = ERFC[10]
    for number in range(9, -1, -1):
        p = p * (t - half) + ERFC[number]
    coarse = (x + COARSE) - COARSE  # whose square is exact
    d = (x - coarse) * (x + coarse)
    rest = one - d * (one - d * (half - d * (np.float32(1 / 6) - d * np.float32(1 / 24))))
    found = t * p * rest * exp(-(coarse * coarse))
    found = np.float32(2) - found if z < 0 else found
    return z if z != z else found
