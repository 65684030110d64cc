"""The ladders of the conversion steps: the inputs' entries in shuffled order, from COO to CSR."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from sparsenn.backends.base import Backend, variant
from sparsenn.backends.cuda.loader import cupy
from sparsenn.backends.cuda.sparse.spmspm import ROWS_PER_THREAD, launch_coarsened, launch_warp_vote_coarsened
from sparsenn.backends.ladder import Ladder, Settled, Sweep, Work, register_ladder, register_sweep
from sparsenn.formats import CSR, Array, csr_to_coo
from sparsenn.formats import conversion as host
from sparsenn.network import Network

__all__ = ["ConversionStage", "register_all"]


@dataclass(frozen=True)
class ConversionStage:
    """One conversion step on given arrays.

    Parameters
    ----------
    given : what the launch takes; arrays are on the device.
    work : bytes read and written, no arithmetic.
    right : says of the arrays that came out, on the host, whether they are right.
    """

    given: tuple[Any, ...]
    work: Work
    right: Callable[[tuple[Array, ...]], bool]

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


def register_all() -> None:
    """Register the ladders of the conversion steps, and what can be varied in those of spmspm."""
    for operation in ("histogram", "scan", "binning", "sort"):
        register_ladder(Ladder(operation, "conversion", partial(_stage, operation)))
    for launch, name in ((launch_coarsened, "coarsened"), (launch_warp_vote_coarsened, "warp_vote_coarsened")):
        register_sweep(
            Sweep(
                rung=variant("spmspm", name, "cuda"),
                parameter="rows a thread",
                values=tuple(sorted(ROWS_PER_THREAD)),
                launch_with=lambda value, launch=launch: partial(launch, rows_per_thread=value),  # type: ignore[misc]
            )
        )
