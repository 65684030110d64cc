"""The package's face: public names, laziness and import time."""

from __future__ import annotations

import ast
import inspect
from importlib import import_module
from pathlib import Path

import pytest
from children import python

import sparsenn

NEEDED_BY_FEW = {
    *("cupy", "matplotlib", "pyarrow", "scipy.fft", "scipy.ndimage", "scipy.special"),
    *("http.client", "urllib.request", "sparsenn.datasets.fetch", "sparsenn.training"),
}
"""What is imported when a function that needs it is called."""


def test_public_names_can_be_had() -> None:
    values = [getattr(sparsenn, name) for name in sparsenn.__all__]
    assert [value.__name__ for value in values] == sparsenn.__all__
    assert [value for value in values if not value.__module__.startswith("sparsenn.")] == []
    assert [name for name, home in sparsenn._HOME_OF.items() if not hasattr(import_module(home), name)] == []
    assert len(set(sparsenn.__all__)) == len(sparsenn.__all__)
    assert set(sparsenn.__all__) <= set(dir(sparsenn))


def test_type_checkers_see_the_same_names_as_users() -> None:
    tree = ast.parse(inspect.getsource(sparsenn))
    guard = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.name: node.module for node in guard.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert sorted(seen) == sorted(sparsenn.__all__)
    assert seen == sparsenn._HOME_OF


def test_unknown_attribute_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'conjure'"):
        _ = sparsenn.conjure


def loaded_by(code: str) -> set[str]:
    done = python("-c", f"{code}; import sys; print(*sys.modules)")
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


def test_public_names_do_not_need_matplotlib_or_the_command_line() -> None:
    loaded = loaded_by("import sparsenn; [getattr(sparsenn, name) for name in sparsenn.__all__]")
    assert not {"typer", "rich"} & loaded
    assert not (NEEDED_BY_FEW - {"sparsenn.training"}) & loaded


@pytest.mark.parametrize("package", ["sparsenn.datasets", "sparsenn.io", "sparsenn.report", "sparsenn.training"])
def test_names_of_a_part_do_not_need_what_only_some_of_its_functions_use(package: str) -> None:
    loaded = loaded_by(f"import {package} as part; [getattr(part, name) for name in part.__all__]")
    assert not (NEEDED_BY_FEW - {package}) & loaded


def test_typed_marker_is_there() -> None:
    assert (Path(sparsenn.__file__).parent / "py.typed").is_file()


def test_python_dash_m_is_the_program() -> None:
    done = python("-m", "sparsenn", "--version", PYTHONWARNINGS="error")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"sparsenn {sparsenn.__version__}\n", "")
