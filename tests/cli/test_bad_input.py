"""Bad input: one clear message on stderr, exit code 2, nothing on stdout, no file, and never a traceback."""

from __future__ import annotations

from pathlib import Path

import h5py
import pytest
from command_line import Refused
from gpu import why_no_gpu


@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        (("--kernel", "conjured"), ["conjured", "known: "]),
        (("--kernel", "pannel"), ["did you mean 'panel'?"]),
        (("--device", "abacus"), ["unknown device 'abacus'", "known: "]),
        (("--device", "reference", "--kernel", "panel"), ["panel", "known: "]),
        (("--batch-size", "0"), ["--batch-size"]),
        (("--memory-limit", "0"), ["--memory-limit is '0'; give bytes", "such as '2G'"]),
        (("--memory-limit", "100"), ["memory limit of 100 bytes does not hold one row"]),
        (("--limit-inputs", "3", "--stream"), ["--limit-inputs does not go with --stream"]),
        (("--inputs", "rows.npy"), ["--inputs goes with --stream"]),
        (("--layers", "7"), ["7", "6"]),
        (("--neurons", "4096"), ["4096", "1024"]),
        (("--bias", "nan"), ["--bias nan is not a finite number"]),
        (("--output", "found.csv"), ["--output found.csv", "use .tsv, .h5"]),
        (("--output", "found"), ["no suffix"]),
        (("--output", "none/found.tsv"), ["the folder none does not exist"]),
        (("--plot", "layers.bmp"), ["use .png, .svg, .pdf"]),
        (("--json", "none/r.json"), ["the folder none does not exist"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_options_of_infer(refused: Refused, problem: Path, arguments: tuple[str, ...], fragments: list[str]) -> None:
    refused(("infer", problem, *arguments), *fragments)


@pytest.mark.skipif(why_no_gpu() is None, reason="there is a GPU here")
@pytest.mark.parametrize("device", ["cuda", "cuda:0", "cuda:9"])
def test_cuda_where_there_is_none(refused: Refused, problem: Path, device: str) -> None:
    refused(("infer", problem, "--device", device), "or use device cpu")


@pytest.mark.parametrize("verb", ["infer", "info"])
def test_sources_that_are_none(refused: Refused, tmp_path: Path, verb: str) -> None:
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
        refused((verb, source), fragment)


def test_hdf5_that_is_none(refused: Refused, problem: Path, tmp_path: Path) -> None:
    text, cut, foreign, empty = (tmp_path / f"{name}.h5" for name in ("text", "cut", "foreign", "empty"))
    text.write_text("not HDF5")
    cut.write_bytes(problem.read_bytes()[:5000])
    empty.write_bytes(b"")
    with h5py.File(foreign, "w") as file:
        file["x"] = [1, 2, 3]
    for path in (text, cut, foreign, empty):
        refused(("infer", path), str(path))
        refused(("challenge", "verify", path, problem), str(path))
