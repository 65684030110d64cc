"""Changes of sound HDF5 files, each of one thing, that make readers refuse them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from sparsenn.errors import FileFormatError

__all__ = ["Change", "attribute", "described", "element", "put", "record", "refused_after"]

Change = Callable[[h5py.File], None]


def put(name: str, data: Any = None) -> Change:
    """Put something else in the place of a dataset, or nothing."""

    def change(file: h5py.File) -> None:
        del file[name]
        if data is not None:
            file[name] = data

    return change


def element(name: str, at: Any, value: Any) -> Change:
    def change(file: h5py.File) -> None:
        file[name][at] = value

    return change


def record(name: str, number: int, field: str, value: Any) -> Change:
    """Change a field of a record of a table; records are counted from 1."""

    def change(file: h5py.File) -> None:
        table = file[name][:]
        table[number - 1][field] = value
        file[name][:] = table

    return change


def described(**parts: Any) -> Change:
    """Change some of what a file says of itself."""

    def change(file: h5py.File) -> None:
        content = json.loads(file["description"][()]) | parts
        put("description", np.bytes_(json.dumps(content)))(file)

    return change


def attribute(name: str, value: Any = None) -> Change:
    def change(file: h5py.File) -> None:
        del file.attrs[name]
        if value is not None:
            file.attrs[name] = value

    return change


def refused_after(change: Change, path: Path, read: Callable[[Path], Any], message: str) -> None:
    """Change a file, which is refused then with its name and a message that matches."""
    with h5py.File(path, "r+") as file:
        change(file)
    with pytest.raises(FileFormatError, match=message) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}: ")
