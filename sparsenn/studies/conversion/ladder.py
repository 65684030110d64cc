"""The ladders of the conversion steps: the inputs' entries in shuffled order, from COO to CSR."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from sparsenn.backends.contract import Backend
from sparsenn.backends.cuda.runtime.device import cupy
from sparsenn.formats import CSR, Array, csr_to_coo
from sparsenn.formats import conversion as host
from sparsenn.network import Network
from sparsenn.studies.conversion.cuda import KERNELS
from sparsenn.studies.ladder import Ladder, Settled, Work


@dataclass(frozen=True)
class ConversionStage:
    """One conversion step on given arrays."""

    given: tuple[Any, ...]  # what the launch takes; arrays are on the device
    work: Work  # bytes read and written, no arithmetic
    right: Callable[[tuple[Array, ...]], bool]  # says of the arrays that came out, on the host, whether they are right

    def arguments(self, carried: Any) -> tuple[Any, ...]:
        """Return the arrays."""
        return self.given

    def settle(self, output: Any) -> Settled:
        """Compare; integers and moved values are right to the last bit or wrong."""
        arrays = output if isinstance(output, tuple) else (output,)
        correct = self.right(tuple(map(cupy().asnumpy, arrays)))
        return Settled(None, 0.0 if correct else np.inf, correct)


def _stage(operation: str, backend: Backend, network: Network, inputs: CSR) -> Iterator[ConversionStage]:
    entries = csr_to_coo(inputs)
    order = np.random.default_rng(0).permutation(entries.nnz)
    rows, columns = entries.rows[order], entries.columns[order]
    values = np.arange(entries.nnz, dtype=np.int32).view(np.float32)  # all different, and only moved
    counts, offsets = np.diff(inputs.indptr), inputs.indptr
    binned, moved = host.binning(rows, columns, values, offsets)
    lengths = {"rows": rows.nbytes, "entries": columns.nbytes + values.nbytes, "groups": offsets.nbytes}

    def same_groups(found: tuple[Array, ...]) -> bool:
        """Whether each group holds its entries, in any order: the values, all different, tell."""
        owner = np.repeat(np.arange(inputs.shape[0]), counts)
        places = found[1].view(np.int32)
        return np.array_equal(rows[places], owner) and np.array_equal(columns[places], found[0])

    def same_order(found: tuple[Array, ...]) -> bool:
        return np.array_equal(found[0], inputs.indices) and np.array_equal(columns[found[1].view(np.int32)], found[0])

    given, moves, right = {
        "histogram": ((rows, inputs.shape[0]), ("rows", "groups"), lambda found: np.array_equal(found[0], counts)),
        "scan": ((counts,), ("groups", "groups"), lambda found: np.array_equal(found[0], offsets)),
        "binning": ((rows, columns, values, offsets), ("rows", "groups", "entries", "entries"), same_groups),
        "sort": ((offsets, binned, moved, inputs.shape[1]), ("groups", "entries", "entries"), same_order),
    }[operation]
    placed = tuple(cupy().asarray(item) if isinstance(item, np.ndarray) else item for item in given)
    yield ConversionStage(placed, Work(sum(lengths[name] for name in moves), 0), right)


def _ladder(operation: str) -> Ladder:
    rungs = tuple(rung for rung in KERNELS if rung.operation == operation)
    return Ladder(operation, "conversion", partial(_stage, operation), rungs={"cuda": rungs})


LADDERS = tuple(map(_ladder, ("histogram", "scan", "binning", "sort")))
