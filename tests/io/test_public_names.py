"""What `sparsenn.io` offers, and that each format's library is imported only with it."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from importlib import import_module

import pytest

import sparsenn.io


@pytest.mark.parametrize(("name", "home"), sparsenn.io._HOME_OF.items())
def test_each_name_can_be_had_and_is_public_at_home(name: str, home: str) -> None:
    module = import_module(f"sparsenn.io.{home}")
    assert getattr(sparsenn.io, name) is getattr(module, name)


def test_lists_agree() -> None:
    tree = ast.parse(inspect.getsource(sparsenn.io))
    guard = next(node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in guard.body if isinstance(node, ast.ImportFrom)]
    seen = {alias.name: node.module.removeprefix("sparsenn.io.") for node in imports for alias in node.names}
    assert seen == sparsenn.io._HOME_OF
    assert sorted(seen) == sorted(sparsenn.io.__all__)
    assert set(sparsenn.io.__all__) <= set(dir(sparsenn.io))


def test_hdf5_needs_no_library_of_another_format() -> None:
    code = (
        "import sys, sparsenn.io\n"
        "print({'h5py', 'pyarrow', 'tarfile', 'scipy.io'} & set(sys.modules))\n"
        "sparsenn.io.read_dataset\n"
        "print({'h5py', 'pyarrow', 'tarfile', 'scipy.io'} & set(sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=240)
    assert done.stdout.splitlines() == ["set()", "{'h5py'}"]
