"""The rung of train whose epoch is one kernel."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sparsenn.backends.cuda.runtime.availability import ANY_GPU
from sparsenn.backends.cuda.runtime.device import cupy, current_machine
from sparsenn.backends.cuda.runtime.loader import program
from sparsenn.backends.cuda.training.graph import (
    ROW_TILES,
    SHARED_BYTES,
    THREADS,
    WEIGHT_TILES,
    FusedTrainer,
    too_little_shared_memory,
)
from sparsenn.backends.cuda.training.trainer import REDUCING_THREADS
from sparsenn.backends.kernel_records import TrainingKernel
from sparsenn.backends.machine import Machine
from sparsenn.backends.trainer import TrainingProblem
from sparsenn.errors import UsageError

_PERSISTENT = program("studies/train/kernels/04_persistent.cu", ROW_TILE=ROW_TILES[:1], WEIGHT_TILE=WEIGHT_TILES[:1])
_SHARING = replace(_PERSISTENT, dynamic_shared=True)
"""The same for the kernel that takes more than `SHARED_BYTES`."""

_RECORD = np.dtype(
    [(name, "u8") for name in ("in", "in_gradient", "weights", "velocity", "out", "gradient")]
    + [("inputs", "i4"), ("outputs", "i4"), ("in_activation", "i4"), ("in_clip", "f4")]
    + [("activation", "i4"), ("clip", "f4")]
)
"""`Layer` in `train/layer.cuh`."""


class PersistentTrainer(FusedTrainer):
    """One cooperative launch an epoch; blocks wait for each other between steps."""

    def _prepare(self) -> None:
        """Compile, and put the layers' records where the kernel finds them."""
        cp = cupy()
        count = len(self._layers)
        reason = _too_many_layers(current_machine(), count)
        if reason is not None:
            raise UsageError(reason)
        self._memory = SHARED_BYTES + count * _RECORD.itemsize
        records = np.array([tuple(fields) for fields in self._layers], _RECORD)
        self._records = cp.asarray(np.frombuffer(records.tobytes(), np.uint8))
        self._arrived = cp.zeros(1, np.uint32)
        raw = _SHARING.kernel("epoch", **self._tiles(ROW_TILES[:1], WEIGHT_TILES[:1]))
        self._epoch = raw.kernel  # the function itself takes the wish for a cooperative launch
        self._blocks = self._multiprocessors  # its registers leave room for one block on each
        self._kernels = {"epoch": raw, "add_losses": _PERSISTENT.kernel("add_losses")}

    def _pass(self) -> None:
        cupy().cuda.runtime.memsetAsync(self._arrived.data.ptr, 0, self._arrived.nbytes, self._stream.ptr)
        arguments = (
            self._records,
            np.int32(len(self._layers)),
            *self._batch(self._order, self._losses, self._batch_size),
            np.int32(self._rows),
            np.int32(self._lanes),
            self._arrived,
        )
        self._epoch((self._blocks,), (THREADS,), arguments, shared_mem=self._memory, enable_cooperative_groups=True)
        arguments = (self._losses, np.int32(self._rows), self._total)
        self._kernels["add_losses"]((1,), (REDUCING_THREADS,), arguments)


def _too_many_layers(machine: Machine, count: int) -> str | None:
    most = (machine.block_bytes - SHARED_BYTES) // _RECORD.itemsize
    if count <= most:
        return None
    return f"{count:,} layers are more than the {most:,} that this kernel holds; use --kernel graph"


def _why_not(machine: Machine, problem: TrainingProblem) -> str | None:
    return too_little_shared_memory(machine) or _too_many_layers(machine, len(problem.layers))


PERSISTENT = TrainingKernel(
    name="persistent",
    device="cuda",
    summary="the whole epoch one kernel, whose blocks wait for each other between steps",
    launch=PersistentTrainer,
    needs=(ANY_GPU,),
    why_not=_why_not,
)
