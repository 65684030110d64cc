"""What a model gives for each row, as text."""

from __future__ import annotations

import os

import numpy as np

from sparsenn.formats import Array
from sparsenn.storage import replacing

__all__ = ["write_outputs", "write_predictions"]


def write_predictions(path: str | os.PathLike[str], predicted: Array) -> None:
    """Write classes as text, whole or not at all: a line for each row, whole numbers that count from 0 as labels do.

    Raises
    ------
    ResourceError
        The file cannot be written.
    """
    with replacing(path) as temporary:
        np.savetxt(temporary, predicted, "%d")


def write_outputs(path: str | os.PathLike[str], outputs: Array) -> None:
    """Write outputs as text, whole or not at all: a line for each row, divided by tabs, nine significant digits.

    Raises
    ------
    ResourceError
        The file cannot be written.
    """
    with replacing(path) as temporary:
        np.savetxt(temporary, outputs, "%.9g", delimiter="\t")
