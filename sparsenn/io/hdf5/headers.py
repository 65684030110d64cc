"""The header of this package's HDF5 files: format and version as attributes, and a description in JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import h5py
import numpy as np

from sparsenn.io.hdf5.reading import Hdf5Source
from sparsenn.io.hdf5.writing import created
from sparsenn.runtime.storage import replacing

__all__ = ["created_as", "read_description"]


@contextmanager
def created_as(path: str | os.PathLike[str], form: str, version: int, description: Any) -> Iterator[h5py.File]:
    """Yield a new HDF5 file with its header; it is written whole or not at all."""
    with replacing(path) as temporary, created(temporary) as file:
        file.attrs["format"], file.attrs["version"] = np.bytes_(form), version
        file["description"] = np.bytes_(json.dumps(description))
        yield file


def read_description(source: Hdf5Source, forms: Collection[str], versions: Collection[int]) -> dict[str, Any]:
    """Return the description of a file of one of these forms and versions."""
    form, version = source.attribute("format"), source.attribute("version")
    if form not in forms:
        found = f"it says {form!r}" if form else "it is some other HDF5 file"
        raise source.fault(f"not a {' or '.join(forms)}: {found}")
    if version not in versions:
        known = ", ".join(map(str, versions))
        raise source.fault(
            f"has version {version}; this program reads version {known}: use the version of sparsenn that wrote it"
        )
    description = json.loads(source.text("description"))
    if not isinstance(description, dict):
        raise source.fault("description is not an object")
    return description
