"""`sparsenn challenge download`, from a server of our own."""

from __future__ import annotations

import gzip
import shutil
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from typer.testing import Result

from sparsenn.io import Dataset, write_official

Run = Callable[..., Result]


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.fixture
def address(dataset: Dataset, tmp_path: Path) -> Iterator[str]:
    """A server that has the published layout of a small network under the names of the real one."""
    published = tmp_path / "published"
    write_official(dataset, tmp_path / "official", archive=True)
    (published / "mnist").mkdir(parents=True)
    (published / "dnn").mkdir()
    images = (tmp_path / "official" / "sparse-images-1024.tsv").read_bytes()
    (published / "mnist" / "sparse-images-1024.tsv.gz").write_bytes(gzip.compress(images))
    shutil.copy(tmp_path / "official" / "neuron1024.tar.gz", published / "dnn")
    truth = tmp_path / "official" / "neuron1024-l6-categories.tsv"
    shutil.copy(truth, published / "dnn" / "neuron1024-l120-categories.tsv")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(published)))
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize("what", [("radixnet-1024x120",), ("1024", "--layers", "120")])
def test_download_then_infer(run: Run, address: str, tmp_path: Path, what: tuple[str, ...]) -> None:
    target = tmp_path / "challenge"
    done = run("challenge", "download", what[0], target, *what[1:], "--url", address)
    assert (done.exit_code, done.stderr) == (0, "")
    assert {Path(line).name for line in done.stdout.splitlines()} == {
        "neuron1024-l120-categories.tsv",
        "sparse-images-1024.tsv.gz",
        "neuron1024.tar.gz",
    }
    assert all(Path(line).is_file() for line in done.stdout.splitlines())
    assert run("infer", target, "--layers", 6).exit_code == 0
    assert run("challenge", "download", what[0], target, *what[1:], "--url", address).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("radixnet-1024x121",), "did you mean 'radixnet-1024x120'?"),
        (("1000",), "no network of 1000 neurons"),
        (("1024", "--layers", "7"), "7 layers"),
        (("1024",), "404"),
        (("9" * 5000,), "99"),
        (("１０２４",), "１０２４"),
        (("1024", "--url", "ftp://127.0.0.1/"), "not an http or https address"),
    ],
)
def test_bad_input_is_refused(run: Run, address: str, tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    done = run("challenge", "download", arguments[0], tmp_path / "challenge", "--url", address, *arguments[1:])
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in done.stderr
