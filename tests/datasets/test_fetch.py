from __future__ import annotations

import http.client
import json
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from file_server import FileServer, serving

from sparsenn.datasets import cache, fetch
from sparsenn.datasets.fetch import fetch as get
from sparsenn.errors import ResourceError, UsageError

CONTENT = np.random.default_rng(1).bytes(300_000)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several blocks a file, and no proxy between the test and its server."""
    monkeypatch.setattr(fetch, "CHUNK", 1 << 14)
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def server() -> Iterator[FileServer]:
    with serving(FileServer({"file": CONTENT})) as running:
        yield running


@pytest.fixture
def part(tmp_path: Path) -> Path:
    return tmp_path / "file.part"


def interrupted_after(url: str, part: Path, count: int) -> None:
    """Fetch until `count` bytes are there, then interrupt as Ctrl-C does."""

    def report(task: str, done: int, total: int) -> None:
        if done >= count:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        get(url, part, progress=report)
    assert count <= part.stat().st_size < len(CONTENT)


def test_a_file_arrives_whole(server: FileServer, part: Path) -> None:
    calls: list[tuple[str, int, int]] = []
    transfer = get(server.url + "file", part, progress=lambda *call: calls.append(call))
    assert part.read_bytes() == CONTENT
    assert transfer.size == len(CONTENT)
    assert transfer.validator is not None
    assert calls[-1] == ("download file", len(CONTENT), len(CONTENT))
    assert len(calls) > 10
    assert server.requests[0]["User-Agent"].startswith("sparsenn/")


@pytest.mark.parametrize("validator", ["etag", "date"])
def test_what_was_interrupted_goes_on_where_it_stopped(server: FileServer, part: Path, validator: str) -> None:
    server.etag, server.date = validator == "etag", validator == "date"
    interrupted_after(server.url + "file", part, 100_000)
    kept = part.stat().st_size
    get(server.url + "file", part)
    assert part.read_bytes() == CONTENT
    assert server.requests[-1]["Range"] == f"bytes={kept}-"
    assert "If-Range" in server.requests[-1]


def test_a_changed_file_is_fetched_from_its_start(server: FileServer, part: Path) -> None:
    interrupted_after(server.url + "file", part, 100_000)
    server.files["file"] = CONTENT[::-1]
    get(server.url + "file", part)
    assert "Range" in server.requests[-1]
    assert part.read_bytes() == CONTENT[::-1]


@pytest.mark.parametrize(
    "switches",
    [{"ranges": False}, {"etag": False}, {"weak": True}],
    ids=["no ranges", "no validator", "weak validator"],
)
def test_what_cannot_be_resumed_starts_over(server: FileServer, part: Path, switches: dict[str, bool]) -> None:
    vars(server).update(switches)
    interrupted_after(server.url + "file", part, 100_000)
    get(server.url + "file", part)
    assert part.read_bytes() == CONTENT
    assert ("Range" in server.requests[-1]) == (switches == {"ranges": False})


@pytest.mark.parametrize(
    ("faults", "requests"), [({"cuts": [1000, 100_000, 0, 0, 50_000]}, 6), ({"statuses": [503, 429]}, 3)]
)
def test_connections_that_break_off_and_busy_servers_are_tried_again(
    server: FileServer, part: Path, faults: dict[str, list[int]], requests: int
) -> None:
    vars(server).update(faults)
    get(server.url + "file", part, attempts=3, pause=0)
    assert part.read_bytes() == CONTENT
    assert len(server.requests) == requests


def test_a_server_that_always_breaks_off_is_given_up_and_the_part_kept(server: FileServer, part: Path) -> None:
    server.cuts = [1000, *[0] * 10]
    with pytest.raises(ResourceError, match=r"/file: .*3 attempts .* 1,000 bytes are in .*file\.part; .* again"):
        get(server.url + "file", part, attempts=3, pause=0)
    assert part.read_bytes() == CONTENT[:1000]
    assert len(server.requests) == 4


@pytest.mark.parametrize(
    ("status", "words"), [(404, "no such file"), (403, "denied"), (410, "gone"), (400, "refuses to send")]
)
def test_a_refusal_is_final(server: FileServer, part: Path, status: int, words: str) -> None:
    server.statuses = [status]
    with pytest.raises(ResourceError, match=rf"/file: the server answers {status} .*{words}.*; check the address"):
        get(server.url + "file", part)
    assert len(server.requests) == 1
    assert not part.exists()


@pytest.mark.parametrize("tell_length", [True, False])
@pytest.mark.parametrize("most", [len(CONTENT) - 1, 1, 0])
def test_no_more_is_taken_than_the_file_can_have(server: FileServer, part: Path, tell_length: bool, most: int) -> None:
    server.tell_length = tell_length
    with pytest.raises(ResourceError, match=rf"the server sends .*; such a file has at most {most:,} bytes"):
        get(server.url + "file", part, most=most)
    assert len(server.requests) == 1
    assert list(part.parent.iterdir()) == []


def without_tls(handler: Any, request: Any) -> Any:
    """Stands in for what https is spoken with; the server of the tests has no certificate."""
    return handler.do_open(http.client.HTTPConnection, request)


@pytest.mark.parametrize(
    ("before", "after", "refused"),
    [
        ("http", "http", None),
        ("http", "https", None),
        ("https", "https", None),
        ("https", "http", "which is not encrypted; not followed"),
        ("http", "ftp", "not an http or https address; not followed"),
    ],
)
def test_an_encrypted_transfer_is_not_sent_on_to_another(
    server: FileServer, part: Path, monkeypatch: pytest.MonkeyPatch, before: str, after: str, refused: str | None
) -> None:
    monkeypatch.setattr(urllib.request.HTTPSHandler, "https_open", without_tls)
    address = server.url.removeprefix("http")
    server.redirects["elsewhere"] = f"{after}{address}file"
    if refused is None:
        get(f"{before}{address}elsewhere", part)
        assert part.read_bytes() == CONTENT
    else:
        with pytest.raises(ResourceError, match=rf"elsewhere: the server redirects to '{after}://.*', {refused}"):
            get(f"{before}{address}elsewhere", part)
        assert len(server.requests) == 1
        assert not part.exists()


def test_disk_space_is_checked_before_the_body(server: FileServer, part: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(fetch, "check_disk", lambda folder, needed, *_: asked.append(needed))
    interrupted_after(server.url + "file", part, 100_000)
    kept = part.stat().st_size
    get(server.url + "file", part)
    assert asked == [len(CONTENT), len(CONTENT) - kept]

    part.unlink()
    monkeypatch.setattr(fetch, "check_disk", cache.check_disk)
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 10}))
    with pytest.raises(ResourceError, match=r"downloading .* needs 0\.3 MB of disk space"):
        get(server.url + "file", part)


def test_a_part_of_another_address_is_not_gone_on_with(server: FileServer, part: Path) -> None:
    server.files["other"] = CONTENT[:150_000]
    interrupted_after(server.url + "file", part, 100_000)
    get(server.url + "other", part)
    assert part.read_bytes() == CONTENT[:150_000]


def test_a_refused_connection_is_said(part: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with pytest.raises(ResourceError, match=r"refused.*2 attempts .*check the connection"):
        get(f"http://127.0.0.1:{port}/file", part, attempts=2, pause=0)


def test_a_part_longer_than_the_file_starts_over(server: FileServer, part: Path) -> None:
    interrupted_after(server.url + "file", part, 100_000)
    note = part.with_name("file.part.json")
    note.write_text(json.dumps(json.loads(note.read_text()) | {"size": None}))
    part.write_bytes(CONTENT + b"more")
    get(server.url + "file", part, pause=0)
    assert part.read_bytes() == CONTENT


def test_a_server_that_sends_another_range_is_not_believed(server: FileServer, part: Path) -> None:
    interrupted_after(server.url + "file", part, 100_000)
    server.wrong_range = True
    get(server.url + "file", part, pause=0)
    assert part.read_bytes() == CONTENT
    assert "Range" in server.requests[-2]
    assert "Range" not in server.requests[-1]


@pytest.mark.parametrize("length", ["9" * 5000, "-5", "12a", "1 2"])
def test_a_length_that_is_none_is_said_in_a_line(server: FileServer, part: Path, length: str) -> None:
    server.length = length
    with pytest.raises(ResourceError, match=r"the server says that the file has '.{1,20}' bytes") as caught:
        get(server.url + "file", part)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("url", "message"),
    [
        *((url, "http or https") for url in ("file:///etc/hosts", "ftp://127.0.0.1/file", "file", "")),
        *((f"http://{place}", "not a valid address") for place in ("[::1/file", "127.0.0.1:port/file")),
        *((f"http://127.0.0.1/{name}", "not a valid address") for name in ("a b", "\u00fc")),
    ],
)
def test_addresses_that_make_no_sense_or_are_not_of_http(url: str, message: str, part: Path) -> None:
    with pytest.raises(UsageError, match=message):
        get(url, part)
