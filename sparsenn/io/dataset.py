"""Dataset: what one inference problem consists of, whichever files it came from."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from sparsenn.errors import InputError, ShapeError, UsageError
from sparsenn.formats import CSR, Array
from sparsenn.formats.arrays import size
from sparsenn.network import Network
from sparsenn.printable import kind_of, one_line


@dataclass(frozen=True, eq=False)
class Dataset:
    """A network, the inputs to run through it, and the true answer where it is known.

    Parameters
    ----------
    name : str
        Short name for reports.
    network : Network
        The layers.
    inputs : CSR, shape (samples, network.inputs), float32
        The samples, one a row.
    truth : array, shape (categories,), int64, optional
        The true categories, sorted and counted from 0; None where they are unknown.
    provenance : dict of str to str, optional
        Where each part came from, in words and figures (generator, seed, source file, checksum).

    Raises
    ------
    UsageError
        The network is no `Network`.
    InputError
        The inputs are not CSR, or the truth is no NumPy array.
    ShapeError
        The inputs are not as wide as the network's first layer, or a category lies beyond the inputs.
    """

    name: str
    network: Network
    inputs: CSR
    truth: Array | None = None
    provenance: dict[str, str] = field(default_factory=dict)

    __repr__ = one_line

    def __post_init__(self) -> None:
        if not isinstance(self.network, Network):
            raise UsageError(f"the network is {kind_of(self.network)}; a Dataset holds a sparsenn.Network")
        if not isinstance(self.inputs, CSR):
            raise InputError(
                f"the inputs are {kind_of(self.inputs)}; a Dataset holds a sparsenn.CSR (see CSR.from_scipy)"
            )
        if not isinstance(self.truth, np.ndarray | None):
            raise InputError(f"the truth is {kind_of(self.truth)}; a Dataset holds a NumPy array of int64")
        rows, width = self.inputs.shape
        if width != self.network.inputs:
            raise ShapeError(f"the inputs have {width} columns; the network takes {self.network.inputs}")
        if self.truth is not None and self.truth.size and not 0 <= self.truth.min() <= self.truth.max() < rows:
            raise ShapeError(f"the truth names category {int(self.truth.max()) + 1}, but there are {rows} inputs")


def check_limits(layers: int | None = None, limit_inputs: int | None = None) -> None:
    """Refuse to read fewer than one layer or one input."""
    for what, limit in (("layers", layers), ("inputs", limit_inputs)):
        if limit is not None:
            size(limit, f"the number of {what} to read")
