"""Small JSON records in the cache folder: what was measured here once and holds for longer than a process."""

from __future__ import annotations

import hashlib
import json
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from sparsenn.errors import FileFormatError, ResourceError
from sparsenn.runtime.storage.atomic import replacing
from sparsenn.runtime.storage.folder import cache_folder, make_cache_folder


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hexadecimals."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def package_version() -> str:
    """Return the version of this package as it was installed; `unknown` where it runs without having been."""
    try:
        return version("sparsenn")
    except PackageNotFoundError:
        return "unknown"


def read_record(name: str, form: int) -> dict[str, Any]:
    """Return what a file of the cache folder holds; nothing, {}, if there is no such file.

    name : of the file, or its path within the cache folder.
    form : number of the record's form, with which it must have been written; it is called version in the file.
    """
    path = cache_folder() / name
    try:
        record = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ResourceError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise FileFormatError(path, f"is not JSON ({error}); remove it") from error
    if not isinstance(record, dict):
        raise FileFormatError(path, f"holds a JSON {type(record).__name__}, not an object; remove it")
    if record.get("version") != form:
        raise FileFormatError(path, f"has version {record.get('version')!r}; this program reads {form}; remove it")
    return record


def write_record(name: str, form: int, record: dict[str, Any]) -> Path:
    """Replace a file of the cache folder as a whole, and return its path; folders are made where they are missing."""
    document = json.dumps({"version": form} | record, indent=2, allow_nan=False) + "\n"
    path = make_cache_folder(str(Path(name).parent)) / Path(name).name
    with replacing(path) as temporary:
        temporary.write_text(document, encoding="utf-8")
    return path
