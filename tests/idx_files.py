"""Files in IDX, the format of MNIST."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np

__all__ = ["write_idx"]

_CODES = {"uint8": 8, "int8": 9, "int16": 11, "int32": 12, "float32": 13, "float64": 14}


def write_idx(path: Path, array: np.ndarray) -> None:
    """Write an array, through gzip if the name ends in `.gz`."""
    header = bytes([0, 0, _CODES[array.dtype.name], array.ndim]) + np.array(array.shape, ">u4").tobytes()
    data = header + array.astype(array.dtype.newbyteorder(">")).tobytes()
    path.write_bytes(gzip.compress(data, 1) if path.suffix == ".gz" else data)
