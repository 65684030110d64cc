"""`sparsenn challenge download`, from a server of our own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import Refused, Run
from file_server import FileServer, serving

from sparsenn.io import Dataset, write_official


@pytest.fixture
def address(dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server that has the published layout of a small network under the names of the real one."""
    monkeypatch.setenv("no_proxy", "*")
    write_official(dataset, tmp_path / "official", archive=True, compress=True)
    names = {
        "mnist/sparse-images-1024.tsv.gz": "sparse-images-1024.tsv.gz",
        "dnn/neuron1024.tar.gz": "neuron1024.tar.gz",
        "dnn/neuron1024-l120-categories.tsv": "neuron1024-l6-categories.tsv",
    }
    files = {address: (tmp_path / "official" / name).read_bytes() for address, name in names.items()}
    with serving(FileServer(files)) as server:
        yield server.url


@pytest.mark.parametrize("what", [("radixnet-1024x120",), ("1024", "--layers", "120")])
def test_download_then_infer(run: Run, address: str, tmp_path: Path, what: tuple[str, ...]) -> None:
    target = tmp_path / "challenge"
    words = ("challenge", "download", what[0], target, *what[1:], "--url", address)
    done = run(*words)
    assert {Path(line).name for line in done.stdout.splitlines()} == {
        "neuron1024-l120-categories.tsv",
        "sparse-images-1024.tsv.gz",
        "neuron1024.tar.gz",
    }
    assert all(Path(line).is_file() for line in done.stdout.splitlines())
    run("infer", target, "--layers", 6)
    run(*words)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("radixnet-1024x121",), "did you mean 'radixnet-1024x120'?"),
        (("1000",), "no network of 1000 neurons"),
        (("1024", "--layers", "7"), "7 layers"),
        (("9" * 5000,), "99"),
        (("１０２４",), "１０２４"),
        (("1024", "--url", "ftp://127.0.0.1/"), "not an http or https address"),
    ],
)
def test_bad_input_is_refused(refused: Refused, address: str, arguments: tuple[str, ...], message: str) -> None:
    refused(("challenge", "download", arguments[0], "challenge", "--url", address, *arguments[1:]), message)


def test_a_file_that_is_not_there_is_told(run: Run, address: str, tmp_path: Path) -> None:
    done = run("challenge", "download", "1024", tmp_path / "challenge", "--url", address, code=2)
    assert (done.stdout, "404" in done.stderr) == ("", True)
