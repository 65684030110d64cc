"""The scripts in examples/ run as they stand, and print what they promise."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from children import python

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"

PROMISES = {
    "challenge": ["120 layers", "GigaEdges/s", "all correct"],
    "ladder": ["sequential", "panel", "one answer"],
    "onnx_model": ["example-predictions.csv: 1,000 predictions"],
    "pruned_torch": ["same predictions: True", "PyTorch:", "sparsenn:"],
}
"""What each example has to print."""

NEEDS = {"pruned_torch": "torch"}
"""Which library an example cannot do without."""


@pytest.mark.parametrize("name", PROMISES)
def test_an_example_runs_as_it_stands(name: str, tmp_path: Path) -> None:
    library = NEEDS.get(name, "numpy")
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"not installed: {library}")
    done = python(EXAMPLES / f"{name}.py", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert all(promise in done.stdout for promise in PROMISES[name]), done.stdout
    if importlib.util.find_spec("onnxruntime") is not None and name == "onnx_model":
        assert "beside ONNX Runtime: same predictions: True" in done.stdout


@pytest.mark.parametrize(("name", "library"), NEEDS.items())
def test_an_example_says_which_library_it_lacks(name: str, library: str, tmp_path: Path) -> None:
    hidden = "import importlib.util as u, runpy; real = u.find_spec; "
    hidden += f"u.find_spec = lambda n, p=None: None if n == {library!r} else real(n, p); "
    hidden += f"runpy.run_path({str(EXAMPLES / f'{name}.py')!r})"
    done = python("-c", hidden, folder=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("This example")
    assert len(done.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_each_example_is_run_and_listed() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(PROMISES)
    page = (ROOT / "docs" / "examples.md").read_text(encoding="utf-8")
    assert all(f"examples/{name}.py" in page for name in PROMISES)
