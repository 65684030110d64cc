"""The kernels of mlp that take a chain of any depth through a multiprocessor, weights streaming by.

They need compute capability 9.0, and layers of up to `WIDEST` outputs. Launches and precisions are those of `fused`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from sparsenn.backends.cuda.conv.warpgroup import ARCHITECTURE, GPU, why_no_warpgroups
from sparsenn.backends.cuda.dense.fused import WIDEST, check_half_range, plain_weights
from sparsenn.backends.cuda.dense.kernel import Given, Ready, dense_kernel, prepared
from sparsenn.backends.cuda.dense.priors import one_launch_seconds
from sparsenn.backends.cuda.dense.stack import DenseStack, StackShape
from sparsenn.backends.cuda.dense.warpgroup_plan import (
    LEAST_ROWS,
    NEURONS,
    Tile,
    arranged,
    is_curved,
    plan,
    slabs_of,
    terms_of,
    unit_list,
    units_read,
)
from sparsenn.backends.cuda.runtime.device import machine_of
from sparsenn.backends.cuda.runtime.layer_cache import cache_on_device, from_host
from sparsenn.backends.cuda.runtime.loader import specialised
from sparsenn.backends.cuda.runtime.precision import SPLIT_PRODUCTS
from sparsenn.backends.cuda.tensor_tiles import FLOAT32, HALF, TF32, Kind
from sparsenn.backends.kernel_records import DenseKernel
from sparsenn.backends.machine import Machine
from sparsenn.backends.prior import TUNED, Prior
from sparsenn.backends.sizes import parts_of

SOURCE = "mlp/warpgroup.cu"

_PROGRAM = specialised(SOURCE, ARCHITECTURE, dynamic_shared=True)


def fits(machine: Machine, shape: StackShape) -> str | None:
    """Return why the kernels cannot run a stack; None if they can."""
    if reason := why_no_warpgroups(machine):
        return reason
    widest = max(shape.widths[1:])
    return None if widest <= WIDEST else f"a layer has {widest:,} outputs; the kernel takes up to {WIDEST}"


def defines(tile: Tile, machine: Machine, half_rows: bool, vector: bool, curved: bool) -> dict[str, int | str]:
    """Return what the kernel is compiled for; `vector` says that features may be read 16 bytes at a time."""
    number = "half_bits" if half_rows else "float"
    return {**tile.defines(machine), "INPUT": number, "VECTOR": int(vector), "CURVED": int(curved)}


def _prepare(kind: Kind, stack: DenseStack, given: Given) -> Ready:
    if kind is HALF:
        check_half_range(stack)
    machine, size = machine_of(stack.device), np.dtype(given.type).itemsize
    terms, (inputs, *outputs) = terms_of(kind), stack.widths
    units = cache_on_device(stack, ("units", terms), lambda: units_read(kind, stack.layers[0].on_host().weights))
    widths = (terms * units.size, *outputs)
    tile = plan(kind, max(outputs), max(1, given.rows), machine)
    vector = given.aligned and inputs * size % 16 == 0
    made = defines(tile, machine, size == 2, vector, is_curved(stack.shape.activations))
    name = "warpgroup", kind, tile.neurons, tile.steps
    laid_out = cache_on_device(stack, name, lambda: from_host(lambda: arranged(tile, stack.on_host(), units)))
    plain: Any = plain_weights(stack) if kind is FLOAT32 else laid_out
    listed = cache_on_device(
        stack, ("unit list", terms, tile.depth), lambda: from_host(lambda: unit_list(tile, inputs, units))
    )
    numbers = np.int64(given.rows), np.int32(inputs), np.int32(len(stack.layers))
    return Ready(
        _PROGRAM.kernel("mlp", **made),
        (parts_of(given.rows, tile.rows),),
        (tile.threads,),
        tile.shared_bytes(machine),
        (given.rows, widths[-1]),
        (laid_out, plain, listed, *numbers, np.int32(sum(slabs_of(tile, widths)))),
    )


TOGETHER = NEURONS, 2 * NEURONS
"""Inputs, of about a slab; and outputs of the two warpgroups that it takes to keep tensor cores busy."""

PRIORS = {
    FLOAT32: Prior(TUNED / SPLIT_PRODUCTS, precision="tf32"),
    TF32: Prior(TUNED, precision="tf32"),
    HALF: Prior(TUNED, precision="tf32"),  # in which it multiplies no faster: it waits for weights
}


def _described(
    kind: Kind, name: str, summary: str, types: tuple[Any, ...] = (np.float32,), **fields: Any
) -> DenseKernel:
    return dense_kernel(
        name,
        prepared(types, partial(_prepare, kind)),
        f"chains of any depth by whole warpgroups{summary}",
        fits,
        needs=(f"layers up to {WIDEST} outputs wide",),
        gpu=GPU,
        auto=True,
        seconds=partial(one_launch_seconds, PRIORS[kind], TOGETHER, LEAST_ROWS),
        **fields,
    )


WARPGROUP_FLOAT32 = _described(
    FLOAT32, "warpgroup_float32", ", each number split into two of TF32", tf32_products=SPLIT_PRODUCTS
)
WARPGROUP_TF32 = _described(TF32, "warpgroup_tf32", " in TF32, weights streamed", precision="tf32")
WARPGROUP_HALF = _described(
    HALF,
    "warpgroup_half",
    " in half precision, weights streamed",
    (np.float32, np.float16),
    precision="float16",
    half_rows=True,
)
KERNELS = (WARPGROUP_FLOAT32, WARPGROUP_TF32, WARPGROUP_HALF)
