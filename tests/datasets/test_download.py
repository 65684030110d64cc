from __future__ import annotations

import gzip
import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from file_server import FileServer, serving

from sparsenn.datasets import download
from sparsenn.errors import FileFormatError, ResourceError, UsageError

FILES = {
    "mnist/sparse-images-1024.tsv.gz": gzip.compress(b"1\t1\t1\n"),
    "dnn/neuron1024.tar.gz": gzip.compress(bytes(5000)),
    "dnn/neuron1024-l120-categories.tsv": b"1\n2\n",
    "dnn/neuron1024-l480-categories.tsv": b"3\n",
    "dnn/neuron1024-l1920-categories.tsv": b"4\n",
}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    monkeypatch.setenv("no_proxy", "*")
    with serving(FileServer(dict(FILES))) as running:
        yield running


def names(*depths: int) -> list[str]:
    truths = (f"neuron1024-l{depth}-categories.tsv" for depth in depths)
    return [*truths, "sparse-images-1024.tsv.gz", "neuron1024.tar.gz"]


def test_all_files_of_a_width_with_their_record(server: FileServer, tmp_path: Path) -> None:
    paths = download(1024, tmp_path / "new" / "folder", base_url=server.url)
    assert [path.name for path in paths] == names(120, 480, 1920)
    record = json.loads((tmp_path / "new" / "folder" / "downloads.json").read_text())
    by_name = {address.rpartition("/")[2]: (address, content) for address, content in FILES.items()}
    for path in paths:
        address, content = by_name[path.name]
        assert path.read_bytes() == content
        entry = record.pop(path.name)
        assert entry["url"] == server.url + address
        assert entry["bytes"] == len(content)
        assert entry["sha256"] == hashlib.sha256(content).hexdigest()
        assert entry["validator"]
        assert entry["fetched"].startswith("20")
    assert record == {}
    assert {path.name for path in paths[0].parent.iterdir()} == {*names(120, 480, 1920), "downloads.json"}


@pytest.mark.parametrize(
    ("what", "layers", "depths"),
    [("radixnet-1024x480", None, [480]), (1024, [1920, 120, 120], [120, 1920]), ("radixnet-1024x480", [120], [120])],
)
def test_only_what_is_asked_for(
    server: FileServer, tmp_path: Path, what: int | str, layers: list[int] | None, depths: list[int]
) -> None:
    paths = download(what, tmp_path, layers=layers, base_url=server.url.rstrip("/"))
    assert [path.name for path in paths] == names(*depths)


def test_what_is_there_and_sound_is_kept(server: FileServer, tmp_path: Path) -> None:
    download("radixnet-1024x120", tmp_path, base_url=server.url)
    before = len(server.requests)
    calls: list[tuple[str, int, int]] = []
    download("radixnet-1024x120", tmp_path, base_url=server.url, progress=lambda *call: calls.append(call))
    assert len(server.requests) == before
    assert [call[0] for call in calls] == [f"check {name}" for name in names(120)]


@pytest.mark.parametrize("damage", [b"", b"1\n3\n"], ids=["truncated", "changed"])
def test_what_is_damaged_is_fetched_anew(server: FileServer, tmp_path: Path, damage: bytes) -> None:
    download("radixnet-1024x120", tmp_path, base_url=server.url)
    before = len(server.requests)
    path = tmp_path / "neuron1024-l120-categories.tsv"
    path.write_bytes(damage)
    download("radixnet-1024x120", tmp_path, base_url=server.url)
    assert path.read_bytes() == b"1\n2\n"
    assert len(server.requests) == before + 1


@pytest.mark.parametrize("elsewhere", [False, True])
def test_what_is_fetched_again_must_be_what_the_record_says(
    server: FileServer, tmp_path: Path, elsewhere: bool
) -> None:
    folder = tmp_path / "first"
    download("radixnet-1024x120", folder, base_url=server.url)
    if elsewhere:
        (tmp_path / "second").mkdir()
        folder = Path(shutil.copy(folder / "downloads.json", tmp_path / "second")).parent
    else:
        (folder / "neuron1024-l120-categories.tsv").unlink()
    server.files["dnn/neuron1024-l120-categories.tsv"] = b"1\n3\n"
    message = r"has the SHA-256 [0-9a-f]{64}; .*downloads\.json says '.*remove the record"
    with pytest.raises(FileFormatError, match=message):
        download("radixnet-1024x120", folder, base_url=server.url)
    assert not list(folder.glob("*categories*"))
    server.files["dnn/neuron1024-l120-categories.tsv"] = b"1\n2\n"
    download("radixnet-1024x120", folder, base_url=server.url)


def test_a_file_of_the_users_own_is_not_overwritten(server: FileServer, tmp_path: Path) -> None:
    own = tmp_path / "neuron1024-l120-categories.tsv"
    own.write_text("mine")
    with pytest.raises(ResourceError, match=r"categories.tsv is there but was not downloaded.*move it away"):
        download("radixnet-1024x120", tmp_path, base_url=server.url)
    assert own.read_text() == "mine"


def test_what_came_before_a_failure_is_kept_and_recorded(server: FileServer, tmp_path: Path) -> None:
    whole = server.files.pop("dnn/neuron1024.tar.gz")
    with pytest.raises(ResourceError, match=r"neuron1024\.tar\.gz: the server answers 404"):
        download("radixnet-1024x120", tmp_path, base_url=server.url)
    assert set(json.loads((tmp_path / "downloads.json").read_text())) == set(names(120)[:2])
    server.files["dnn/neuron1024.tar.gz"] = whole
    before = len(server.requests)
    download("radixnet-1024x120", tmp_path, base_url=server.url)
    assert len(server.requests) == before + 1


def test_a_transfer_that_breaks_off_is_resumed_by_the_next_call(server: FileServer, tmp_path: Path) -> None:
    server.cuts = [100, 100, 10, 0, 0]
    with pytest.raises(ResourceError, match=r"10 bytes are in .*tar\.gz\.part"):
        download("radixnet-1024x120", tmp_path, base_url=server.url, attempts=2, pause=0)
    assert not (tmp_path / "neuron1024.tar.gz").exists()
    download("radixnet-1024x120", tmp_path, base_url=server.url)
    assert server.requests[-1]["Range"] == "bytes=10-"
    assert (tmp_path / "neuron1024.tar.gz").read_bytes() == FILES["dnn/neuron1024.tar.gz"]
    assert not list(tmp_path.glob("*.part*"))


@pytest.mark.parametrize("address", ["mnist/sparse-images-1024.tsv.gz", "dnn/neuron1024-l120-categories.tsv"])
@pytest.mark.parametrize("content", [b"<html>Please log in</html>", b""])
def test_a_page_instead_of_the_file_is_not_kept(
    server: FileServer, tmp_path: Path, address: str, content: bytes
) -> None:
    server.files[address] = content
    with pytest.raises(FileFormatError, match=rf"{address}: begins with .*check the address"):
        download("radixnet-1024x120", tmp_path, base_url=server.url)
    assert not list(tmp_path.glob(address.rpartition("/")[2] + "*"))


@pytest.mark.parametrize("text", ["{", "[]", '{"a": 1}', "\udcff"])
def test_a_damaged_record_is_refused(server: FileServer, tmp_path: Path, text: str) -> None:
    (tmp_path / "downloads.json").write_text(text, errors="surrogateescape")
    with pytest.raises(FileFormatError, match=r"downloads\.json: .*remove it"):
        download(1024, tmp_path, base_url=server.url)
    assert server.requests == []


@pytest.mark.parametrize(
    ("what", "layers", "message"),
    [
        (1000, None, "no network of 1000 neurons"),
        (1024, [121], "with 121 layers; neurons: 1024, 4096, 16384, 65536; layers: 120, 480, 1920"),
        ("radixnet-1024x121", None, "unknown dataset"),
        ("radixnet-1024x120", [1], "with 1 layers"),
    ],
)
def test_what_the_challenge_does_not_have_is_refused(
    tmp_path: Path, what: int | str, layers: list[int] | None, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        download(what, tmp_path / "none", layers=layers)
    assert not (tmp_path / "none").exists()
