"""Measured choices of kernels, stored on disk: one JSON file per key, in the folder `choices` of the cache folder.

A file that cannot be read or written is a warning, never an error: choices can be measured again.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from sparsenn.errors import FileFormatError, ResourceError
from sparsenn.runtime.storage import Cleared, cache_folder, cache_named, read_record, remove_files, write_record

FOLDER = "choices"  # name of the cache, and of its folder

VERSION = 1
"""Number of the files' form; files of another form count as absent."""

DIGEST_DIGITS = 24
"""Hexadecimal digits of a file's name, 96 bits of the key's SHA-256."""

Key: TypeAlias = Mapping[str, str | int]
"""What a choice depends on, by name, such as the device, the network's digest, and the number and form of rows."""


class ChoicesWarning(UserWarning):
    """Measured choices cannot be read or stored; they are measured again."""


def read(key: Key) -> dict[str, Any] | None:
    """Return the record of a key, as it was written, with `key`; None if there is none.

    A file that is damaged, or has another version, counts as absent and is a `ChoicesWarning`, once per process.
    """
    return _read(_file_name(key))


def write(key: Key, record: Mapping[str, Any]) -> bool:
    """Store the record of a key, in place of an older one: all of it, or nothing; return whether it is stored.

    A cache folder that cannot be written to is a `ChoicesWarning`, once per process.
    """
    try:
        write_record(_file_name(key), VERSION, {**record, "key": dict(key)})
    except ResourceError as error:
        _warn(f"measured choices are not stored: {error}")
        return False
    return True


def entries() -> tuple[dict[str, Any], ...]:
    """Return all records that can be read, in the order of their files' names, as `read` does."""
    records = (_read(f"{FOLDER}/{path.name}") for path in cache_named(FOLDER).files)
    return tuple(record for record in records if record is not None)


def clear(matching: str | None = None) -> Cleared:
    """Remove stored records.

    `matching`: text in a value of their key, such as a part of a device's name; None for all, damaged files included.
    """
    found = cache_named(FOLDER)
    files = found.files if matching is None else tuple(path for path in found.files if _matches(path, matching))
    return remove_files(replace(found, files=files))


def _file_name(key: Key) -> str:
    text = json.dumps(dict(key), sort_keys=True)
    return f"{FOLDER}/{hashlib.sha256(text.encode()).hexdigest()[:DIGEST_DIGITS]}.json"


def _read(name: str) -> dict[str, Any] | None:
    try:
        record = read_record(name, VERSION)
        if record and not (_is_key(record.get("key")) and _file_name(record["key"]) == name):
            raise FileFormatError(cache_folder() / name, "does not hold the key that its name stands for; remove it")
    except (FileFormatError, ResourceError) as error:
        _warn(f"measured choices are not used: {error}")
        return None
    record.pop("version", None)
    return record or None


def _is_key(key: Any) -> bool:
    return isinstance(key, dict) and all(type(value) in (str, int) for value in key.values())


def _matches(path: Path, text: str) -> bool:
    record = _read(f"{FOLDER}/{path.name}")
    return record is not None and any(text in str(value) for value in record["key"].values())


@cache
def _warn(message: str) -> None:
    warnings.warn(message, ChoicesWarning, stacklevel=3)
