"""What an import or a run loads and evaluates: counted, so that no other work on the machine changes the result."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from children import python
from scipy.sparse import csr_array

from sparsenn.cli.program import VERBS, Verb
from sparsenn.datasets import radixnet
from sparsenn.formats import CSR
from sparsenn.io import Dataset, write_dataset

OF_OTHERS = ("numpy", "numba", "scipy", "h5py", "pyarrow", "matplotlib", "rich", "typer", "cupy")


def told(code: str, *arguments: str, folder: Path | None = None) -> list[str]:
    done = python("-c", code, *arguments, **({"SPARSENN_CACHE": folder} if folder else {}))
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1].split()


def loaded(code: str, *arguments: str, folder: Path | None = None) -> set[str]:
    return set(told(f"{code}\nimport sys\nprint(*sys.modules)", *arguments, folder=folder))


PROGRAM = (
    "import atexit, sys; from sparsenn.cli import run; sys.argv = ['sparsenn', *sys.argv[1:]];"
    "atexit.register(lambda: print(*sys.modules)); run()"
)
"""Runs the program, and prints the modules that are loaded when it ends."""


def imported(*arguments: object) -> set[str]:
    """The modules that are loaded when the program ends, in a process of its own."""
    return set(told(PROGRAM, *map(str, arguments)))


def test_the_package_by_itself_is_next_to_nothing() -> None:
    modules = loaded("import sparsenn")
    assert {name for name in modules if name.partition(".")[0] == "sparsenn"} == {"sparsenn", "sparsenn.plugins"}
    assert not modules & set(OF_OTHERS)


def test_backends_need_numpy_numba_and_no_study() -> None:
    modules = loaded("import sparsenn.backends")
    of_others = {"h5py", "pyarrow", "matplotlib", "rich", "typer", "cupy"}
    assert not modules & (of_others | {"sparsenn.studies", "sparsenn.engine"})
    assert {"numpy", "numba", "sparsenn.backends.cuda"} <= modules


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where what is compiled and generated is kept for the tests here: a folder that is empty at first."""
    return tmp_path_factory.mktemp("cache")


FIRST_REPORT = """
import contextlib, sys
from importlib import import_module
from sparsenn.cli.program import verb_of
from sparsenn.runtime.progress import silent

module = import_module(f"sparsenn.cli.{verb_of(sys.argv[1:]).module}")

@contextlib.contextmanager
def seen(wanted):
    told.append("numba" in sys.modules)
    yield silent

told = []
module.reporting = seen
from sparsenn.cli import main
sys.argv[0] = "sparsenn"
main()
print(told[0])
"""
"""Tells whether numba was imported when a verb began to report where it stands."""


@pytest.mark.parametrize(
    "line",
    [
        "infer {problem} --device cpu --no-verify",
        "challenge convert {problem} {folder}/copy.h5",
        "predict {problem} {rows}",
        "train {rows} --output {folder}/model.h5 --epochs 1 --device cpu",
        "kernels ladder spmspm --dataset {problem} --device cpu --layers 1 --rows 2 --runs 1",
    ],
)
def test_something_moves_before_anything_large_is_imported(
    line: str, problem: Path, cache: Path, tmp_path: Path
) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("a,b\n1,2\n3,4\n")
    words = line.format(problem=problem, folder=tmp_path, rows=rows).split()
    assert told(FIRST_REPORT, *words, folder=cache) == ["False"]


NOT_TO_INFER = {
    *("pyarrow", "cupy", "matplotlib", "sparsenn.training", "sparsenn.studies", "sparsenn.io.tables.csv"),
    *(f"sparsenn.cli.{verb.module}" for verb in VERBS if verb.module != "infer"),
}
"""What inference on the CPU has no use for."""

MOST_MODULES = 1400
"""Modules that inference on the CPU may import, those of Python, NumPy, numba, typer and h5py among them."""


@pytest.fixture(scope="module")
def problem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of 64 neurons and 3 layers, in HDF5."""
    path = tmp_path_factory.mktemp("problem") / "problem.h5"
    rows = CSR.from_scipy(csr_array(np.eye(20, 64)))
    write_dataset(Dataset("small", radixnet(64, 3), rows), path)
    return path


def test_the_program_loads_what_inference_needs(problem: Path) -> None:
    modules = imported("infer", problem, "--device", "cpu", "--kernel", "panel")
    assert {"sparsenn.engine.session", "sparsenn.cli.infer", "numba.np.arraymath"} <= modules
    assert not modules & NOT_TO_INFER
    assert len(modules) < MOST_MODULES


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: "-".join(verb.words))
def test_help_of_a_verb_loads_no_other(verb: Verb) -> None:
    modules = imported(*verb.words, "--help")
    assert {other.module for other in VERBS if f"sparsenn.cli.{other.module}" in modules} == {verb.module}
    assert not modules & set(OF_OTHERS) - {"rich", "typer"}


@pytest.mark.parametrize(
    "line",
    [
        "infer none.h5",
        "infer none/",
        "predict {problem} none.csv",
        "info none.h5",
        "infer radixnet-1024x120 --bias nan",
        "train none.npz --output model.h5",
        "challenge convert none.h5 copy.h5",
        "convert none.onnx copy.h5",
        "challenge generate none/made.h5",
        "challenge verify none.tsv {problem}",
        "kernels ladder spmspm --dataset none.h5",
        "kernels roofline spmspm --dataset none.h5",
    ],
)
def test_a_wrong_file_name_is_told_before_anything_large_is_loaded(line: str, problem: Path, tmp_path: Path) -> None:
    done = python("-c", PROGRAM, *line.format(problem=problem).split(), folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert not set(done.stdout.split()) & set(OF_OTHERS) - {"rich", "typer"}
    assert not list(tmp_path.iterdir())
