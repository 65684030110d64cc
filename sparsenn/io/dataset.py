"""Dataset: what one inference problem consists of, whichever files it came from."""

from __future__ import annotations

from dataclasses import dataclass, field

from sparsenn.errors import ShapeError, UsageError
from sparsenn.formats import CSR, Array
from sparsenn.network import Network

__all__ = ["Dataset", "check_limits"]


@dataclass(frozen=True, eq=False)
class Dataset:
    """A network, the inputs to run through it, and the true answer where it is known.

    Parameters
    ----------
    name : short name for reports.
    network : the layers.
    inputs : CSR of shape (inputs, network.inputs), float32.
    truth : sorted int64 vector of the true categories, counted from 0; None where unknown.
    provenance : where each part came from, in words and figures (generator, seed, source file, checksum).

    Raises
    ------
    ShapeError
        The inputs are not as wide as the network's first layer, or a category lies beyond the inputs.
    """

    name: str
    network: Network
    inputs: CSR
    truth: Array | None = None
    provenance: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rows, width = self.inputs.shape
        if width != self.network.inputs:
            raise ShapeError(f"the inputs have {width} columns; the network takes {self.network.inputs}")
        if self.truth is not None and self.truth.size and not 0 <= self.truth.min() <= self.truth.max() < rows:
            raise ShapeError(f"the truth names category {int(self.truth.max()) + 1}, but there are {rows} inputs")


def check_limits(layers: int | None = None, limit_inputs: int | None = None) -> None:
    """Refuse to read fewer than one layer or one input.

    Raises
    ------
    UsageError
        A limit is given that is not positive.
    """
    for what, limit in (("layers", layers), ("inputs", limit_inputs)):
        if limit is not None and limit < 1:
            raise UsageError(f"cannot read {limit} {what}; at least 1 is needed")
