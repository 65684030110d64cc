"""What a result in HDF5 holds, read with h5py alone."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np

from sparsenn.formats import CSR

__all__ = ["result_in"]


def result_in(path: Path) -> tuple[CSR, np.ndarray, dict[str, str]]:
    """Return outputs, categories (counted from 0) and notes."""
    with h5py.File(path) as file:
        assert file.attrs["format"] == b"sparsenn result"
        description = json.loads(file["description"][()])
        indptr, indices, values = (file["outputs"][name][()] for name in ("indptr", "indices", "values"))
        outputs = CSR((indptr.size - 1, description["columns"]), indptr, indices, values).validate()
        return outputs, file["categories"][()] - 1, description["attributes"]
