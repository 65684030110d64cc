"""Bad input: one clear message on stderr, exit code 2, nothing on stdout, no file, and never a traceback."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Callable
from pathlib import Path

import h5py
import pytest
from typer.testing import Result

Run = Callable[..., Result]


def refused(done: Result, *fragments: str) -> None:
    """Check that a verb was refused with one message that holds all fragments."""
    assert (done.exit_code, done.stdout) == (2, "")
    text = " ".join(done.stderr.replace("│", " ").split())
    for fragment in fragments:
        assert fragment in text
    assert done.stderr.lower().count("error") >= 1


@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        (("--kernel", "conjured"), ["conjured", "known: "]),
        (("--kernel", "pannel"), ["did you mean 'panel'?"]),
        (("--device", "abacus"), ["unknown device 'abacus'", "known: "]),
        (("--device", "cpu:1x"), ["cpu:1x"]),
        (("--device", "reference", "--kernel", "panel"), ["panel", "known: "]),
        (("--batch-size", "0"), ["--batch-size"]),
        (("--batch-size", "-5"), ["--batch-size"]),
        (("--batch-size", "many"), ["--batch-size", "integer"]),
        (("--memory-limit", "0"), ["--memory-limit is '0'; give bytes", "such as '2G'"]),
        (("--memory-limit", "-1"), ["--memory-limit is '-1'"]),
        (("--memory-limit", "inf"), ["--memory-limit is 'inf'"]),
        (("--memory-limit", "2X"), ["--memory-limit is '2X'"]),
        (("--memory-limit", "100"), ["memory limit of 100 bytes does not hold one row"]),
        (("--weight-memory", "0G"), ["--weight-memory is '0G'"]),
        (("--limit-inputs", "0"), ["--limit-inputs"]),
        (("--limit-inputs", "3", "--stream"), ["--limit-inputs does not go with --stream"]),
        (("--inputs", "rows.npy"), ["--inputs goes with --stream"]),
        (("--layers", "0"), ["--layers"]),
        (("--layers", "7"), ["7", "6"]),
        (("--neurons", "4096"), ["4096", "1024"]),
        (("--bias", "nan"), ["--bias nan is not a finite number"]),
        (("--bias", "1e400"), ["--bias inf is not a finite number"]),
        (("--output", "found.csv"), ["--output found.csv", "use .tsv, .h5"]),
        (("--output", "found"), ["no suffix"]),
        (("--output", "-"), ["no suffix"]),
        (("--output", "none/found.tsv"), ["the folder none does not exist"]),
        (("--plot", "layers.bmp"), ["use .png, .svg, .pdf"]),
        (("--json", "none/r.json"), ["the folder none does not exist"]),
        (("--json", "."), ["is a folder, not a file"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_options_of_infer(
    run: Run,
    problem: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    fragments: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    refused(run("infer", problem, *arguments), *fragments)
    assert not list(tmp_path.iterdir())


def test_a_full_device_is_told(run: Run, problem: Path) -> None:
    result = run("infer", problem, "--json", "/dev/full")
    assert result.exit_code == 2
    assert "/dev/full" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("option", ["--batch-size", "--limit-inputs", "--memory-limit", "--weight-memory"])
def test_more_than_there_is_is_no_error(run: Run, problem: Path, option: str) -> None:
    assert run("infer", problem, option, 10**30).exit_code == 0


@pytest.mark.parametrize("option", ["--layers", "--neurons"])
def test_absurdly_many_are_refused(run: Run, problem: Path, folder: Path, option: str) -> None:
    for source in (problem, folder):
        refused(run("infer", source, option, 10**30), str(10**30))


@pytest.mark.parametrize("device", ["cuda", "cuda:0", "cuda:9"])
def test_cuda_where_there_is_none(run: Run, problem: Path, device: str) -> None:
    from gpu import why_no_gpu

    if why_no_gpu() is None:
        pytest.skip("there is a GPU here")
    refused(run("infer", problem, "--device", device), "or use --device cpu")


@pytest.mark.parametrize("verb", ["infer", "info"])
def test_sources_that_are_none(run: Run, tmp_path: Path, verb: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("hello")
    for source, fragment in [
        (tmp_path / "none.h5", "no such file"),
        (tmp_path / "none", "no such file"),
        (tmp_path / "empty", "not the official layout"),
        (tmp_path / "notes.txt", "notes.txt"),
        ("radixnet-1024x121", "did you mean 'radixnet-1024x120'?"),
        ("", "error"),
        ("\0", "error"),
    ]:
        refused(run(verb, source), fragment)


def test_hdf5_that_is_none(run: Run, problem: Path, tmp_path: Path) -> None:
    text, cut, foreign, empty = (tmp_path / f"{name}.h5" for name in ("text", "cut", "foreign", "empty"))
    text.write_text("not HDF5")
    cut.write_bytes(problem.read_bytes()[:5000])
    empty.write_bytes(b"")
    with h5py.File(foreign, "w") as file:
        file["x"] = [1, 2, 3]
    for path in (text, cut, foreign, empty):
        refused(run("infer", path), str(path))
        refused(run("challenge", "verify", path, problem), str(path))


@pytest.fixture
def broken(folder: Path, tmp_path: Path) -> Path:
    """A copy of the official folder, to be broken."""
    return Path(shutil.copytree(folder, tmp_path / "broken"))


@pytest.mark.parametrize(
    ("name", "content", "place"),
    [
        ("neuron1024/n1024-l3.tsv", None, "n1024-l3.tsv"),
        ("neuron1024/n1024-l3.tsv", b"1\t2\t0.0625\n1\tx\t0.0625\n", "n1024-l3.tsv:2"),
        ("neuron1024/n1024-l3.tsv", b"1\t2\t0.0625\n0\t3\t0.0625\n", "n1024-l3.tsv:2"),
        ("neuron1024/n1024-l3.tsv", b"1\t2\tnan\n", "n1024-l3.tsv:1"),
        ("neuron1024/n1024-l3.tsv", b"", "n1024-l3.tsv"),
        ("sparse-images-1024.tsv", b"1\t1025\t1\n", "sparse-images-1024.tsv:1"),
        ("sparse-images-1024.tsv", b"1\t3\t1\n1\t3\t1\n", "image 1, pixel 3 occurs twice"),
        ("sparse-images-1024.tsv", b"1\t3\t1\n1\t4", "sparse-images-1024.tsv:2"),
        ("sparse-images-1024.tsv", None, "sparse-images-1024.tsv"),
        ("neuron1024-l6-categories.tsv", b"1\n0\n", "neuron1024-l6-categories.tsv:2"),
        ("neuron1024-l6-categories.tsv", b"one\n", "neuron1024-l6-categories.tsv:1"),
    ],
)
def test_faults_in_an_official_folder(run: Run, broken: Path, name: str, content: bytes | None, place: str) -> None:
    (broken / name).unlink()
    if content is not None:
        (broken / name).write_bytes(content)
    refused(run("infer", broken), place)


def test_truncated_gzip(run: Run, broken: Path) -> None:
    images = broken / "sparse-images-1024.tsv"
    (broken / "sparse-images-1024.tsv.gz").write_bytes(gzip.compress(images.read_bytes())[:-100])
    images.unlink()
    refused(run("infer", broken), "sparse-images-1024.tsv.gz", "truncated")


def test_unreadable_file(run: Run, problem: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def deny(*arguments: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied", str(problem))

    monkeypatch.setattr("sparsenn.datasets.load", deny)
    refused(run("infer", problem), f"{problem}: Permission denied")
