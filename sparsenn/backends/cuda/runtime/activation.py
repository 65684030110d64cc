"""Activations as the kernels know them, generated from `sparsenn.layers.activation.ACTIVATIONS`."""

from __future__ import annotations

import math

import numpy as np

from sparsenn.errors import UsageError
from sparsenn.layers import Conv2d, Identity, Linear, ReLU, SparseLinear
from sparsenn.layers.activation import ACTIVATIONS as ROWS
from sparsenn.layers.activation_names import table_row
from sparsenn.layers.elementwise import Activation, Elementwise
from sparsenn.layers.formulas import as_cuda

ACTIVATIONS = tuple(row.name.upper() for row in ROWS)  # the codes of `enum Activation` are places in the table

RELU = ROWS.index(ReLU)
IDENTITY = ROWS.index(Identity)

RELU_CLIPPED = len(ACTIVATIONS)  # name of a ReLU with a clip in kernels that are compiled for one activation
HEADER = "activations.cuh"  # the name by which kernels include what `activation_header` returns


def activation_code(layer: SparseLinear | Linear | Conv2d, number: int) -> tuple[np.int32, np.float32]:
    """Return a layer's activation as `activation_number` does; raises UsageError for one that kernels do not know."""
    code = activation_number(layer.activation)
    if code is None:
        raise UsageError(f"layer {number}: the CUDA kernels do not know the activation {layer.activation}")
    return code


def activation_number(activation: Activation) -> tuple[np.int32, np.float32] | None:
    """Return an activation and its parameter, infinity where there is none, as the kernels take them; else None."""
    row = table_row(activation)
    return None if row is None else (np.int32(ROWS.index(type(row))), np.float32(row.parameter))


def activation_of(code: int, parameter: float) -> Elementwise:
    """Return the activation that `activation_code` gives such numbers for."""
    return ROWS[code]() if math.isinf(parameter) else ROWS[code](parameter)  # type: ignore[call-arg]


def compiled_activation(code: int, clipped: bool) -> int:
    """Return what a kernel is compiled for, given an activation's code and whether there is a clip."""
    return RELU_CLIPPED if code == RELU and clipped else code


def activation_header() -> str:
    """Return C++ for the activations: their codes, functions and derivatives; NaN for what is none, or has none."""
    functions = [
        f"__device__ __forceinline__ float {row.name}_of(float z, float p) {{\n{_indented(as_cuda(row.formula))}\n}}"
        for row in ROWS
    ]
    *others, last = ROWS
    known = [f"if constexpr (KIND == {row.name.upper()}) return {row.name}_of(z, p); else" for row in others]
    known += [f"return {last.name}_of(z, p);"]
    curved = [f"case {row.name.upper()}: return {row.name}_of(z, p);" for row in ROWS if row.is_curved]
    slopes = [
        f"if (kind == {row.name.upper()}) {{\n{_indented(as_cuda(row.slope, contract=True))}\n}}"
        for row in ROWS
        if row.slope is not None
    ]
    return _TEMPLATE.format(
        codes=", ".join(ACTIVATIONS),
        clipped=RELU_CLIPPED,
        is_curved=" && ".join(f"kind != {row.name.upper()}" for row in ROWS if not row.is_curved),
        functions="\n\n".join(functions),
        known=_indented("\n".join(known)),
        curved=_indented("\n".join(curved), 2),
        slopes=_indented("\n".join(slopes)),
    )


def _indented(text: str, depth: int = 1) -> str:
    return "\n".join("    " * depth + line for line in text.split("\n"))


_TEMPLATE = """\
// Activations, generated from the table in sparsenn/layers/activation.py.
#pragma once

enum Activation {{ {codes} }};

constexpr int RELU_CLIPPED = {clipped};  // of kernels that are compiled for their activation, where RELU has no clip

// Whether an activation is more than bringing numbers between two bounds.
__device__ __forceinline__ constexpr bool is_curved(int kind) {{ return {is_curved}; }}

{functions}

// An activation that the kernel is compiled for. p is its parameter, infinite where there is none. NaN stays NaN.
template <int KIND>
__device__ __forceinline__ float activate_as(float z, float p) {{
    static_assert(KIND >= 0 && KIND < RELU_CLIPPED, "there is no such activation");
{known}
}}

// Not inlined: the code of all is there once, however often a kernel has it. A template, to be there if it is called.
template <typename Number>
__device__ __noinline__ Number activate_curved(Number z, int kind, Number p) {{
    switch (kind) {{
{curved}
    }}
    return __int_as_float(0x7fffffff);
}}

// An activation that a layer tells.
__device__ __forceinline__ float activate(float z, int kind, float p) {{
    if (kind == RELU) return relu_of(z, p);
    return kind == IDENTITY ? z : activate_curved<float>(z, kind, p);
}}

// The derivative of an activation where its value is y.
__device__ __forceinline__ float slope(float y, int kind, float p) {{
{slopes}
    return __int_as_float(0x7fffffff);
}}
"""
