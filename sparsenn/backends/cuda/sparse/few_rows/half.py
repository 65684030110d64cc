"""few_rows_float16: chains of sparse layers for few rows in half precision, a launch a layer, sums in any order."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from sparsenn.backends.cuda.runtime.availability import ANY_GPU
from sparsenn.backends.cuda.runtime.device import cupy, current_machine
from sparsenn.backends.cuda.runtime.loader import program
from sparsenn.backends.cuda.runtime.recorder import EARLY_CAPABILITY, launch
from sparsenn.backends.cuda.sparse.few_rows.chain import too_wide
from sparsenn.backends.cuda.sparse.few_rows.weights import CLASSES, on_device, pack_weights
from sparsenn.backends.cuda.sparse.priors import few_rows_seconds
from sparsenn.backends.cuda.sparse.queued_chain import QueuedChain, chain_kernel
from sparsenn.backends.cuda.sparse.stack import DeviceLayer
from sparsenn.backends.machine import WARP, Machine
from sparsenn.backends.sizes import parts_of
from sparsenn.formats import CSR
from sparsenn.network import Network

GROUP = 8  # rows that a lane has sums of, where there is more than one row
THREADS = (1024, 512)
WIDEST = 65_528  # inputs of a layer, as places have 16 bits, and eight lie behind the inputs
EDGE_BYTES = 4  # a weight and its place
BETWEEN, FLOATS, HALVES = range(3)  # forms of rows, as in the kernel

_PROGRAM = program("sparse/few_rows_half.cu", dynamic_shared=True, ROWS=(1, GROUP), THREADS=THREADS[::-1])


def group_of(machine: Machine, inputs: int, rows: int) -> int | None:
    """Return how many rows share a read of the weights; None where not even one fits into shared memory."""
    fitting = [group for group in (GROUP, 1) if _shared_bytes(group, inputs) <= machine.block_bytes]
    return fitting[0 if rows > 1 else -1] if fitting else None


def _shared_bytes(group: int, inputs: int) -> int:
    return 2 * group * CLASSES * (parts_of(inputs, CLASSES) + 1)


class HalfFewRowsChain(QueuedChain):
    """A chain of launches; rows between layers are halves, and NaN beyond their range."""

    def __init__(self, device: int, layers: Sequence[DeviceLayer], rows: int) -> None:
        super().__init__("few_rows_float16", device, layers, rows, takes_halves=True)
        self._machine = current_machine()
        group = group_of(self._machine, max(layer.inputs for layer in layers), rows)
        assert group is not None, "why_not has said so"
        self._group = group
        self._weights = on_device(layers, "packed halves", pack_weights)
        self._kernels = {each: _PROGRAM.kernel("few_rows_half", ROWS=group, THREADS=each) for each in THREADS}
        numbers = parts_of(max(1, rows), group) * group * max(layer.outputs for layer in layers)
        self._buffers = [cupy().empty(max(1, numbers), np.float16) for _ in layers[1:3]]

    def _cut(self, layer: DeviceLayer, groups: int) -> tuple[int, int]:
        """Return the blocks of a group, all of which run at once, one on a multiprocessor, and their threads."""
        at_once, needed = self._machine.multiprocessors, WARP * layer.outputs
        threads = THREADS[needed * groups <= THREADS[1] * at_once]
        return max(1, min(parts_of(needed, threads), at_once // groups)), threads

    def _queue(self, first: int, last: int, rows: Any) -> Any:
        count, kind = rows.shape[0], HALVES if rows.dtype == np.float16 else FLOATS
        outputs = cupy().empty((count, self._layers[last - 1].outputs), rows.dtype)
        source, form, groups = rows, kind, parts_of(count, self._group)
        for number in range(first, last if count else first):
            layer, weights, is_last = self._layers[number], self._weights[number], number + 1 == last
            target, form_out = (outputs, kind) if is_last else (self._buffers[number % 2], BETWEEN)
            arguments = (
                *(weights.words, weights.runs, np.int32(layer.inputs), np.int32(layer.outputs)),
                *(source, np.int32(form), target, np.int32(form_out), np.int32(count), layer.activation, layer.clip),
            )
            blocks, threads = self._cut(layer, groups)
            shared_bytes = _shared_bytes(self._group, layer.inputs)
            kernel = self._kernels[threads]
            launch(
                *("spmspm", kernel, (blocks, groups), (threads,), *arguments),
                shared_bytes=shared_bytes,
                early=self._machine.capability >= EARLY_CAPABILITY,
            )
            source, form = target, form_out
        return outputs


def _why_not(machine: Machine, network: Network, inputs: CSR) -> str | None:
    layers: Sequence[Any] = network.layers
    if reason := too_wide(layers, WIDEST):
        return reason
    widest = max(layer.inputs for layer in layers)
    if group_of(machine, widest, 1) is None:
        return f"a row of {widest:,} halves does not fit into a multiprocessor's shared memory"
    return None


FEW_ROWS_FLOAT16 = chain_kernel(
    "few_rows_float16",
    HalfFewRowsChain,
    2,
    partial(few_rows_seconds, GROUP, EDGE_BYTES, 2),
    precision="float16",
    summary="a warp an output, weights of 11 bits in any range; float32 sums",
    needs=(ANY_GPU,),
    why_not=_why_not,
)
