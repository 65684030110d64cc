"""Download of the challenge's published files, with a record of what was fetched."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sparsenn.datasets.mnist import OFFICIAL_NONZEROS, TRAINING_SHAPE
from sparsenn.datasets.named import DEGREE
from sparsenn.datasets.names import LAYER_COUNTS, NEURON_COUNTS, parse_name
from sparsenn.errors import FileFormatError, ResourceError, UsageError
from sparsenn.runtime.progress import Progress, ProgressOption, shown_progress
from sparsenn.runtime.storage import file_sha256, replacing

BASE_URL = "https://graphchallenge.s3.amazonaws.com/synthetic/sparsechallenge_2019/"

RECORD = "downloads.json"
"""File beside the downloads: for each of them address, bytes, SHA-256, validator (ETag or date) and time."""

_LINE_BYTES = 32
"""Bytes that a line of the published text takes at most; compressed, it takes fewer."""

Entries = dict[str, dict[str, Any]]


def download(
    what: int | str,
    folder: str | os.PathLike[str],
    *,
    layers: Sequence[int] | None = None,
    base_url: str = BASE_URL,
    attempts: int = 5,
    pause: float = 1.0,
    progress: ProgressOption = None,
) -> list[Path]:
    """Download inputs, network and categories of one width into a folder that `load` reads.

    A file that is there and matches its record stays; one that does not match is fetched anew. What was
    interrupted goes on where it stopped. Size and SHA-256 of each file are recorded in `RECORD`, and must be the same
    whenever it is fetched again: a record that was copied into an empty folder says what the files there must be.

    Parameters
    ----------
    what : int or str
        Number of neurons, or a dataset's name such as radixnet-1024x120.
    folder : str or path-like
        Where the files go; made if absent.
    layers : sequence of int, optional
        Depths whose categories are wanted; unless given, those of the name, or all three. The network's archive holds
        all layers in any case.
    base_url : str, optional
        Address under which the files lie.
    attempts : int, default 5
        Attempts in a row that bring no further byte before giving up.
    pause : float, default 1
        Seconds before the second attempt; doubled before each further one.
    progress : callable or bool, optional
        As `sparsenn.Session.run` takes it; called with the bytes of each file.

    Returns
    -------
    list of pathlib.Path
        The files.

    Raises
    ------
    UsageError
        A width, depth or name that is not part of the challenge, or an address that is not http or https.
    ResourceError
        A file cannot be had or written, or one is in the way that was not downloaded.
    FileFormatError
        The record, or a fetched file, is not what it should be; or the file is not the one recorded.
    """
    files = _files(what, layers)
    place = Path(folder)
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ResourceError(f"cannot make {place}: {error.strerror}; choose a folder that you may write to") from error
    entries = _recorded(place)
    with shown_progress(progress) as report:
        for name, (address, most) in files.items():
            url = base_url.rstrip("/") + "/" + address
            before, part = entries.get(name), place / f"{name}.part"
            if not _is_complete(place / name, before, report):
                entries[name] = _fetched(
                    url, part, place / name, before, most=most, attempts=attempts, pause=pause, progress=report
                )
                # the record first: a file that is not recorded counts as the user's own
                with replacing(place / RECORD) as temporary:
                    temporary.write_text(json.dumps(entries, indent=2) + "\n", encoding="utf-8")
                part.replace(place / name)
            _note(part).unlink(missing_ok=True)
    return [place / name for name in files]


def _files(what: int | str, layers: Sequence[int] | None) -> dict[str, tuple[str, int]]:
    """Return the files to fetch: name in the folder, address relative to the base, and bytes that each can have."""
    if isinstance(what, str):
        neurons, depth = parse_name(what)
        layers = layers or (depth,)
    else:
        neurons, layers = what, layers or LAYER_COUNTS
    if neurons not in NEURON_COUNTS or not set(layers) <= set(LAYER_COUNTS):
        raise UsageError(
            f"the challenge has no network of {neurons} neurons with {', '.join(map(str, layers))} layers; "
            f"neurons: {', '.join(map(str, NEURON_COUNTS))}; layers: {', '.join(map(str, LAYER_COUNTS))}"
        )
    categories = [f"neuron{neurons}-l{depth}-categories.tsv" for depth in sorted(set(layers))]
    inputs, network = f"sparse-images-{neurons}.tsv.gz", f"neuron{neurons}.tar.gz"
    edges = neurons * DEGREE * max(LAYER_COUNTS)
    return {name: (f"dnn/{name}", TRAINING_SHAPE[0] * _LINE_BYTES) for name in categories} | {
        inputs: (f"mnist/{inputs}", OFFICIAL_NONZEROS[neurons] * _LINE_BYTES),
        network: (f"dnn/{network}", edges * _LINE_BYTES),
    }


def _recorded(folder: Path) -> Entries:
    path = folder / RECORD
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ResourceError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise FileFormatError(path, "is not JSON; remove it, and the downloads beside it, to start anew") from error
    if not isinstance(entries, dict) or not all(isinstance(entry, dict) for entry in entries.values()):
        raise FileFormatError(path, "is not a record of downloads; remove it to start anew")
    return entries


def _is_complete(path: Path, entry: dict[str, Any] | None, progress: Progress) -> bool:
    if not path.exists():
        return False
    if entry is None:
        raise ResourceError(
            f"{path} is there but was not downloaded: {RECORD} does not list it; "
            "move it away to download it, or choose another folder"
        )
    same = path.stat().st_size == entry.get("bytes") and file_sha256(path) == entry.get("sha256")
    if same:
        progress(f"check {path.name}", 1, 1)
    return same


def _note(part: Path) -> Path:
    return part.with_name(part.name + ".json")


def _fetched(url: str, part: Path, path: Path, before: dict[str, Any] | None, **how: Any) -> dict[str, Any]:
    """Fetch one file, `path`, as `part`, and check it; returns its entry, which was `before` in the record."""
    from sparsenn.datasets.fetch import fetch  # brings the library for HTTP with it

    transfer = fetch(url, part, **how)
    with part.open("rb") as file:
        start = file.read(2)
    if (start != b"\x1f\x8b") if path.suffix == ".gz" else not start[:1].isdigit():
        part.unlink()
        _note(part).unlink()
        kind = "a gzip file" if path.suffix == ".gz" else "a list of categories"
        raise FileFormatError(url, f"begins with {start!r}, which is not {kind}; check the address")
    checksum = file_sha256(part)
    if before is not None and before.get("sha256") != checksum:
        part.unlink()
        _note(part).unlink()
        raise FileFormatError(
            url,
            f"has the SHA-256 {checksum}; {path.with_name(RECORD)} says {before.get('sha256')!r} of {path.name}; "
            "remove the record, and the downloads beside it, if the published file has changed",
        )
    return {
        "url": url,
        "bytes": part.stat().st_size,
        "sha256": checksum,
        "validator": transfer.validator,
        "fetched": datetime.now(UTC).isoformat(timespec="seconds"),
    }
