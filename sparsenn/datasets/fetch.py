"""Fetching one file over HTTP so that an interrupted transfer goes on where it stopped.

The bytes go to ``NAME.part``; ``NAME.part.json`` notes which version of which address they are (its validator: a
strong ETag or the date of the last change). To resume, the rest is asked for on the condition that the validator
still holds (RFC 9110, If-Range): a server that has another version, or knows no ranges, sends the whole file, and
the transfer starts over.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sparsenn import __version__
from sparsenn.datasets.cache import check_disk
from sparsenn.errors import ResourceError, UsageError
from sparsenn.runtime.progress import Progress, silent
from sparsenn.runtime.storage import replacing

CHUNK = 1 << 20
SCHEMES = ("http", "https")
TIMEOUT = 60.0
"""Seconds without an answer or a byte after which a connection counts as broken."""
TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
"""HTTP statuses that may pass if asked again later."""

_COUNT = "([0-9]{1,18})"  # a number of bytes


@dataclass(frozen=True)
class Transfer:
    """What a ``.part`` file is part of.

    validator : strong ETag or date of last change; None if the server names neither: such a part cannot be resumed.
    size : bytes of the whole file; None if the server does not say.
    """

    url: str
    validator: str | None = None
    size: int | None = None


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Goes where a server says that the file lies, by http or https, but never from https to what is not encrypted."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        before, after = (urllib.parse.urlsplit(address).scheme for address in (req.full_url, newurl))
        if after not in SCHEMES or (before, after) == ("https", "http"):
            raise ResourceError(
                f"{req.full_url}: the server redirects to {newurl!r}, "
                f"{'which is not encrypted' if after == 'http' else 'not an http or https address'}; not followed"
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def fetch(
    url: str,
    part: Path,
    *,
    most: int | None = None,
    attempts: int = 5,
    pause: float = 1.0,
    progress: Progress = silent,
) -> Transfer:
    """Fetch `url` into the file `part`, going on with what is there from an earlier transfer.

    url : http or https address.
    part : file for the bytes; complete on return. The caller checks it and gives it its name.
    most : bytes that the file can have; no more are taken, and a part that has more is removed.
    attempts : attempts in a row that bring no further byte before giving up.
    pause : seconds before the second attempt; doubled before each further one.
    progress : called with the bytes so far.
    """
    try:
        scheme = urllib.parse.urlsplit(url).scheme
    except ValueError as error:
        raise UsageError(f"{url} is not a valid address: {error}") from error
    if scheme not in SCHEMES:
        raise UsageError(f"{url} is not an http or https address")
    furthest, failures = _size(part), 0
    while True:
        try:
            transfer = _attempt(url, part, most, progress)
            if transfer.size in (None, _size(part)):
                return transfer
            reason = "the connection ended early"
        except urllib.error.HTTPError as error:
            error.close()
            if error.code not in TRANSIENT:
                raise ResourceError(_refusal(url, error)) from error
            reason = f"the server answers {error.code} {error.reason}"
        except (http.client.InvalidURL, UnicodeError) as error:
            raise UsageError(f"{url} is not a valid address: {error}") from error
        except (OSError, http.client.HTTPException) as error:
            reason = str(getattr(error, "reason", None) or error or type(error).__name__)
        failures = 0 if _size(part) > furthest else failures + 1
        furthest = max(furthest, _size(part))
        if failures >= attempts:
            raise ResourceError(
                f"{url}: {reason}; {attempts} attempts fetched nothing more, {furthest:,} bytes are in {part}; "
                "check the connection and run again to resume from there"
            )
        time.sleep(pause * 2 ** max(failures - 1, 0))


def _attempt(url: str, part: Path, most: int | None, progress: Progress) -> Transfer:
    """Open one connection and take all it gives."""
    known, have = _noted(part), _size(part)
    resumable = have > 0 and known.url == url and known.validator is not None
    if resumable and known.size == have:
        return known
    headers = {"User-Agent": f"sparsenn/{__version__}", "Accept-Encoding": "identity"}
    if resumable:
        headers |= {"Range": f"bytes={have}-", "If-Range": known.validator or ""}
    try:
        opener = urllib.request.build_opener(_Redirects)
        response = opener.open(urllib.request.Request(url, headers=headers), timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code == 416 and resumable:  # the range lies beyond the file: the part is none of it
            error.close()
            part.unlink()
            raise http.client.HTTPException("the file is shorter than what has already been fetched") from error
        raise
    except UnicodeError:
        raise
    except ValueError as error:
        raise ResourceError(f"{url}: the server redirects to an invalid address ({error}); not followed") from error
    with response:
        if response.status == 206:
            transfer = _continued(response, known, part)
        elif response.status == 200:
            transfer, have = _begun(response, url, part), 0
        else:
            raise ResourceError(f"{url}: the server answers {response.status} {response.reason}; a file was expected")
        if most is not None and (transfer.size or 0) > most:
            raise _excess(transfer, part, most)
        remedy = "free some space, or choose a folder on another disk"
        check_disk(part.parent, max((transfer.size or 0) - have, 0), f"downloading {url}", remedy)
        _take(response, part, have, transfer, most, progress)
    return transfer


def _continued(response: Any, known: Transfer, part: Path) -> Transfer:
    found = re.fullmatch(rf"bytes {_COUNT}-{_COUNT}/{_COUNT}", response.headers.get("Content-Range", ""))
    if not found or int(found[1]) != _size(part) or known.size not in (None, int(found[3])):
        said = response.headers.get("Content-Range", "no range")
        part.unlink(missing_ok=True)
        raise http.client.HTTPException(f"when asked to resume, the server sent another part of the file ({said})")
    return Transfer(known.url, known.validator, int(found[3]))


def _begun(response: Any, url: str, part: Path) -> Transfer:
    """Note what is about to be fetched from its start, and drop what was there."""
    etag = response.headers.get("ETag")
    strong = etag if etag and not etag.startswith("W/") else None
    length = response.headers.get("Content-Length")
    if length is not None and not re.fullmatch(_COUNT, length):
        raise ResourceError(f"{url}: the server says that the file has {length[:20]!r} bytes; check the address")
    size = None if length is None else int(length)
    transfer = Transfer(url, strong or response.headers.get("Last-Modified"), size)
    part.unlink(missing_ok=True)
    with replacing(_note(part)) as temporary:
        temporary.write_text(json.dumps(asdict(transfer)), encoding="utf-8")
    return transfer


def _take(response: Any, part: Path, have: int, transfer: Transfer, most: int | None, progress: Progress) -> None:
    """Append what the server sends to the part; of a size that it does not say, no more than the file can have."""
    task, size = f"download {part.stem}", transfer.size
    try:
        file = part.open("ab")
    except OSError as error:
        raise ResourceError(f"cannot write {part}: {error.strerror}; choose a folder that you may write to") from error
    with file:
        while block := response.read(CHUNK):
            if most is not None and have + len(block) > most:
                raise _excess(transfer, part, most)
            try:
                file.write(block)
                file.flush()
            except OSError as error:
                raise ResourceError(f"cannot write {part}: {error.strerror}; free some space and run again") from error
            have += len(block)
            progress(task, have, max(size or have + 1, have))
        os.fsync(file.fileno())
    if size is None:
        progress(task, have, have)


def _excess(transfer: Transfer, part: Path, most: int) -> ResourceError:
    """Drop what was taken of a file that is larger than it can be, and return the error."""
    part.unlink(missing_ok=True)
    _note(part).unlink(missing_ok=True)
    size = "more" if transfer.size is None else f"{transfer.size:,} bytes"
    return ResourceError(
        f"{transfer.url}: the server sends {size}; such a file has at most {most:,} bytes; check the address"
    )


def _refusal(url: str, error: urllib.error.HTTPError) -> str:
    remedies = {401: "it wants a login", 403: "access is denied", 404: "there is no such file", 410: "the file is gone"}
    why = remedies.get(error.code, "it refuses to send the file")
    return f"{url}: the server answers {error.code} {error.reason}: {why}; check the address"


def _note(part: Path) -> Path:
    return part.with_name(part.name + ".json")


def _noted(part: Path) -> Transfer:
    try:
        note = Transfer(**json.loads(_note(part).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, RecursionError):
        return Transfer("")
    known = isinstance(note.url, str) and isinstance(note.validator, str | None) and isinstance(note.size, int | None)
    return note if known else Transfer("")


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0
