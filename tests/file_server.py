"""A web server on this machine whose faults are set by the test: `FileServer.files` and the switches beside it."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

__all__ = ["FileServer", "serving"]


@dataclass
class FileServer:
    """What is served, how, and what was asked for.

    Parameters
    ----------
    files : content by path.
    ranges : whether requests for a part are understood.
    etag, date : whether answers carry an ETag, and a date of last change.
    weak : whether the ETag is a weak one.
    cuts : bytes after which to break off the body, one number per answer, used up in turn.
    statuses : errors to answer with, used up in turn before any file is served.
    tell_length : whether answers carry a Content-Length.
    length : what they say in it; the body's unless given.
    redirects : addresses sent on to, by path.
    requests : the headers of all requests so far.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    ranges: bool = True
    etag: bool = True
    date: bool = False
    weak: bool = False
    cuts: list[int] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    tell_length: bool = True
    length: str | None = None
    redirects: dict[str, str] = field(default_factory=dict)
    wrong_range: bool = False
    requests: list[dict[str, str]] = field(default_factory=list)
    url: str = ""


@contextmanager
def serving(server: FileServer) -> Iterator[FileServer]:
    """Serve on a free port of 127.0.0.1 while the block runs."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(server, self)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        server.url = f"http://127.0.0.1:{http.server_address[1]}/"
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            http.shutdown()
            thread.join()


def answer(server: FileServer, request: BaseHTTPRequestHandler) -> None:
    server.requests.append(dict(request.headers))
    if request.path.lstrip("/") in server.redirects:
        request.send_response(302)
        request.send_header("Location", server.redirects[request.path.lstrip("/")])
        request.end_headers()
        return
    content = server.files.get(request.path.lstrip("/"))
    if server.statuses or content is None:
        request.send_error(server.statuses.pop(0) if server.statuses else 404)
        return
    validators = validators_of(server, content)
    start = range_start(server, request, content, set(validators.values()))
    if start is not None and start >= len(content):
        request.send_response(416)
        request.send_header("Content-Range", f"bytes */{len(content)}")
        request.end_headers()
        return
    body = content[start or 0 :]
    request.send_response(200 if start is None else 206)
    for name, value in validators.items():
        request.send_header(name, value)
    if server.tell_length:
        request.send_header("Content-Length", server.length or str(len(body)))
    if start is not None:
        first = start + 1 if server.wrong_range else start
        request.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
    request.end_headers()
    request.wfile.write(body[: server.cuts.pop(0)] if server.cuts else body)


def validators_of(server: FileServer, content: bytes) -> dict[str, str]:
    digest = sha256(content).hexdigest()
    found = {}
    if server.etag:
        found["ETag"] = f'{"W/" if server.weak else ""}"{digest[:16]}"'
    if server.date:
        found["Last-Modified"] = f"Tue, 01 Jan 2019 00:00:{int(digest, 16) % 60:02d} GMT"
    return found


def range_start(
    server: FileServer, request: BaseHTTPRequestHandler, content: bytes, validators: set[str]
) -> int | None:
    """The first byte asked for; None where the whole file has to be sent."""
    asked = re.fullmatch(r"bytes=(\d+)-", request.headers.get("Range", ""))
    if not server.ranges or not asked or request.headers.get("If-Range") not in validators:
        return None
    return int(asked[1])
