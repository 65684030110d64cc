"""Common parts of the priors of dense kernels: launches of a replayed graph, and chains in one launch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from sparsenn.backends.cuda.dense.stack import widths_of
from sparsenn.backends.machine import Machine
from sparsenn.backends.prior import Prior
from sparsenn.backends.sizes import parts_of
from sparsenn.layers import Linear

COPIES = 2  # copies in a replayed graph besides its kernels: of the rows, and of the outputs


def one_launch_seconds(
    prior: Prior,
    multiples: tuple[int, int],
    block_rows: int,
    machine: Machine,
    layers: Sequence[Linear],
    rows: int,
    row_bytes: int = 4,
) -> float:
    """Estimate a chain of layers in one launch, with the copies before and after it, in seconds.

    Inputs and outputs of a layer count as multiples of `multiples`; a multiprocessor takes as long for one row as for
    `block_rows`.
    """
    widths = widths_of(layers)
    deep, wide = multiples
    products = sum(deep * parts_of(before, deep) * wide * parts_of(after, wide) for before, after in pairwise(widths))
    computed = max(rows, block_rows * machine.multiprocessors)
    return prior.seconds(machine, computed * products, row_bytes * rows * (widths[0] + widths[-1]), 1 + COPIES)
