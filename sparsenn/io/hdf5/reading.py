"""Reading HDF5 files that may be damaged, foreign or hostile.

Only what this package writes is read: datasets of an exact type, stored contiguously in the file itself. So nothing
is unpickled, no other file is opened, no filter runs, and what a dataset declares is known to be in the file before
memory is taken for it.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import IO, Any

import h5py
import numpy as np
import numpy.typing as npt

from sparsenn.errors import FileFormatError
from sparsenn.formats import Array
from sparsenn.io.bounded import open_plain
from sparsenn.printable import kind_of, reason_of
from sparsenn.runtime.memory import check_memory

_FAULTS = (OSError, KeyError, RuntimeError, ValueError, TypeError, OverflowError, NotImplementedError)
"""What h5py raises on files that are not as they should be."""


class Hdf5Source:
    """An HDF5 file open for reading; `size` is its length in bytes."""

    def __init__(self, path: str, file: h5py.File, size: int) -> None:
        self.path = path
        self.size = size
        self._file = file

    def fault(self, message: str) -> FileFormatError:
        """Return the error for what is wrong with this file."""
        return FileFormatError(self.path, message)

    def attribute(self, name: str) -> str | int | None:
        """Return an attribute of the file that is one string or one whole number; None if there is no such.

        Strings are of fixed length: those of variable length are in a heap, which libhdf5 may search forever in a
        damaged file.
        """
        if name not in self._file.attrs:
            return None
        stored = self._file.attrs.get_id(name)
        if stored.shape != () or stored.dtype.kind not in "Siu":
            return None
        value = self._file.attrs[name]
        return bytes(value).decode("ascii") if stored.dtype.kind == "S" else int(value)

    def has_attribute(self, name: str) -> bool:
        """Whether the file has an attribute, of any kind."""
        return name in self._file.attrs

    def has(self, name: str) -> bool:
        """Whether the file holds `group/name`."""
        return self._object(name) is not None

    def names(self, name: str) -> list[str]:
        """Return the names in a group, in the file's order; none if it is no group. The file itself is called ""."""
        found = self._object(name)
        return list(found) if isinstance(found, h5py.Group) else []

    def array_names(self, name: str) -> list[str]:
        """Return the names of the datasets in a group, in the file's order; none if it is no group."""
        return [each for each in self.names(name) if isinstance(self._object(f"{name}/{each}"), h5py.Dataset)]

    def texts_of(self, name: str, attribute: str) -> list[str] | None:
        """Return an attribute of a group that is a vector of strings of fixed length; None if there is no such.

        Those too long for one attribute are divided among several, numbered from 0.
        """
        found = self._object(name)
        if not isinstance(found, h5py.Group):
            return None
        single = attribute in found.attrs
        texts: list[str] = []
        for number in range(len(found.attrs)):
            key = attribute if single else f"{attribute}{number}"
            if key not in found.attrs:
                break
            stored = found.attrs.get_id(key)
            if stored.dtype.kind != "S" or len(stored.shape) != 1:
                return None
            texts += [bytes(value).decode("utf-8") for value in found.attrs[key]]
            if single:
                break
        return texts or None

    def description(self, forms: Collection[str], versions: Collection[int]) -> dict[str, Any]:
        """Return the description, JSON, of a file of this package that is of one of these forms and versions."""
        form, version = self.attribute("format"), self.attribute("version")
        if form not in forms:
            found = f"it says {form!r}" if form else "it is some other HDF5 file"
            raise self.fault(f"not a {' or '.join(forms)}: {found}")
        if version not in versions:
            known = ", ".join(map(str, versions))
            raise self.fault(
                f"has version {version}; this program reads version {known}: use the version of sparsenn that wrote it"
            )
        description = json.loads(self.text("description"))
        if not isinstance(description, dict):
            raise self.fault("description is not an object")
        return description

    def length(self, name: str) -> int:
        """Return the length of a vector without reading it."""
        return int(self._dataset(name, 1).shape[0])

    def text(self, name: str) -> str:
        """Read a string of fixed length."""
        dataset = self._dataset(name, 0)
        if dataset.dtype.kind != "S":
            raise self.fault(f"{name} holds {_shown(dataset.dtype)}; it must hold a string of fixed length")
        return bytes(dataset[()]).decode("utf-8")

    def vector(self, name: str, *dtypes: npt.DTypeLike, count: int | None = None, length: int | None = None) -> Array:
        """Read a vector.

        name : `group/name`.
        dtypes : the types that its elements may have.
        count : read the first so many elements; all unless given.
        length : elements that there must be in all.
        """
        dataset = self._typed(name, 1, dtypes)
        stored = int(dataset.shape[0])
        size = stored if count is None else count
        if stored < size or stored != (stored if length is None else length):
            raise self.fault(f"{name} has {stored:,} elements; {size if length is None else length:,} are needed")
        check_memory(size * dataset.dtype.itemsize, f"{self.path}: {name}")
        data = np.empty(size, dataset.dtype)
        if size:
            dataset.read_direct(data, np.s_[:size])
        return data

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a dataset of any number of dimensions, without reading it."""
        return tuple(map(int, self._dataset(name, None).shape))

    def matrix(self, name: str, *dtypes: npt.DTypeLike) -> Array:
        """Read a matrix, whole; `dtypes` are the types that its elements may have."""
        return self._whole(self._typed(name, 2, dtypes), name)

    def place(self, name: str, dimensions: int, *dtypes: npt.DTypeLike) -> tuple[int, tuple[int, ...], np.dtype[Any]]:
        """Return where in the file an array is, its shape and its type; `dtypes` are the types that it may have."""
        dataset = self._typed(name, dimensions, dtypes)
        return dataset.id.get_offset() or 0, dataset.shape, dataset.dtype

    def array(self, name: str, *dtypes: npt.DTypeLike) -> Array:
        """Read an array of any number of dimensions, whole; `dtypes` are the types that its elements may have."""
        return self._whole(self._typed(name, None, dtypes), name)

    def _whole(self, dataset: h5py.Dataset, name: str) -> Array:
        check_memory(dataset.size * dataset.dtype.itemsize, f"{self.path}: {name}")
        return np.asarray(dataset[()])

    def _typed(self, name: str, dimensions: int | None, dtypes: tuple[npt.DTypeLike, ...]) -> h5py.Dataset:
        dataset = self._dataset(name, dimensions)
        if dataset.dtype not in dtypes:
            allowed = " or ".join(_shown(np.dtype(dtype)) for dtype in dtypes)
            raise self.fault(f"{name} holds {_shown(dataset.dtype)}; it must hold {allowed}")
        return dataset

    def _object(self, name: str) -> h5py.Group | h5py.Dataset | None:
        """Follow a name through groups; None if it leads nowhere. Links to other names or files are refused."""
        found: Any = self._file
        for part in name.split("/") if name else ():
            link = found.get(part, getlink=True) if isinstance(found, h5py.Group) else None
            if link is None:
                return None
            if not isinstance(link, h5py.HardLink):
                raise self.fault(f"{name}: {part} is {kind_of(link)}; links are not followed")
            found = found[part]
        return found

    def _dataset(self, name: str, dimensions: int | None) -> h5py.Dataset:
        """Return a dataset whose every byte is in the file itself, as it is in memory; of any dimensions if None."""
        dataset = self._object(name)
        if not isinstance(dataset, h5py.Dataset):
            raise self.fault(f"{name} is missing")
        if dataset.shape is None or len(dataset.shape) != (len(dataset.shape) if dimensions is None else dimensions):
            raise self.fault(f"{name} has the shape {dataset.shape}; it must have {dimensions} dimensions")
        how = dataset.id.get_create_plist()
        if how.get_layout() != h5py.h5d.CONTIGUOUS or how.get_nfilters() or how.get_external_count():
            raise self.fault(
                f"{name} is chunked, compressed, virtual or stored outside the file; only contiguous data is read: "
                "h5repack -f NONE -l CONTI OLD NEW rewrites it"
            )
        nbytes = math.prod(dataset.shape) * dataset.dtype.itemsize
        end = (dataset.id.get_offset() or 0) + nbytes
        if nbytes and (dataset.id.get_storage_size() != nbytes or end > self.size):
            raise self.fault(f"{name} declares {nbytes:,} bytes, which are not in the file ({self.size:,} bytes)")
        return dataset


@contextmanager
def opened(path: str | os.PathLike[str], within: IO[bytes] | None = None) -> Iterator[Hdf5Source]:
    """Open an HDF5 file for reading; whatever h5py makes of a bad one becomes an error of this package.

    within : the bytes of an HDF5 file that is inside of that one.
    """
    if within is None:
        with open_plain(path) as plain:
            size = os.fstat(plain.fileno()).st_size
    else:
        size = within.seek(0, os.SEEK_END)
    try:
        with h5py.File(os.fspath(path) if within is None else within, "r", locking=False) as file:
            yield Hdf5Source(os.fspath(path), file, size)
    except _FAULTS as error:
        raise FileFormatError(path, f"not HDF5, or damaged ({reason_of(error)}); fetch or make it again") from error


def _shown(dtype: np.dtype[Any]) -> str:
    """Name a type, its byte order too where that is not the machine's; records by their fields."""
    return f"records of {', '.join(dtype.names)}" if dtype.names else str(dtype)
