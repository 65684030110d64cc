"""What `sparsenn kernels list --compile` compiles: everything that later runs need; none of it returns arrays."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import importlib, json, pkgutil, sys
from pathlib import Path

from numba.core.dispatcher import Dispatcher
from typer.testing import CliRunner

import sparsenn
from sparsenn.cli.app import app
from sparsenn.runtime.jit import compiled_functions


def run(line):
    done = CliRunner().invoke(app, line.split())
    assert done.exit_code == 0, (line, done.output)


def name(function):
    return f"{function.py_func.__module__}.{function.py_func.__qualname__}"


def entered():
    return {(name(function), str(types)) for function in compiled_functions() for types in function.signatures}


run("kernels list --compile")
before = entered()
known = {name(function) for function in compiled_functions()}

for module in pkgutil.walk_packages(sparsenn.__path__, "sparsenn."):
    if not module.name.endswith("__main__"):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            if error.name not in ("torch", "distributed"):  # which only those have who use these modules
                raise
found = {
    id(value): value
    for module in list(sys.modules.values())
    if module.__name__.startswith("sparsenn")
    for value in vars(module).values()
    if isinstance(value, Dispatcher)
}
# Threaded functions stand behind others; what stands in for them in forked processes is compiled there.
found |= {id(function): function for function in compiled_functions() if not name(function).endswith("_alone")}
# Numba compiles what compiled functions call together with them; from its cache it loads them as one.
covered = {id(function) for function in found.values() if function.signatures}
while True:
    called = {
        id(function.py_func.__globals__.get(word))
        for function in found.values()
        if id(function) in covered
        for word in function.py_func.__code__.co_names
    }
    if not (called & found.keys()) - covered:
        break
    covered |= called & found.keys()

Path("t.csv").write_text("1,2,0\\n3,4,1\\n" * 8)
for line in LINES:
    run(line)
print(json.dumps({
    "functions": len(found),
    "unregistered": sorted(name(f) for f in found.values() if name(f) not in {name(g) for g in compiled_functions()}),
    "missing": sorted(name(function) for key, function in found.items() if key not in covered),
    "late": sorted(name(f) for f in compiled_functions() if name(f) not in known),
    "more": sorted(entered() - before),
    "arrays": sorted(
        name(function)
        for function in compiled_functions()
        if any("array(" in str(made.signature.return_type) for made in function.overloads.values())
    ),
}))
"""

LINES = [
    "challenge generate p.h5 --neurons 64 --kronecker 4 --radices 4,4 --layers 3 --images 20 --bias -0.1 "
    "--inputs digits",
    "infer p.h5 --device cpu --output found.h5 --json found.json",
    *(f"infer p.h5 --device cpu --kernel {kernel}" for kernel in ("panel", "sequential", "scipy")),
    "infer p.h5 --device cpu --stream --output found.tsv",
    "infer p.h5 --device cpu --no-merging --no-deduplication --no-compaction",
    "challenge convert p.h5 official",
    "infer official --device cpu --bias -0.1",
    "info p.h5",
    "challenge convert official/neuron64/n64-l1.tsv l.mtx --shape 64x64",
    "train t.csv --device cpu --kernel numba --hidden 3,2 --epochs 1 --output m.h5 --validation t.csv",
    "train t.csv --device cpu --classes --activation tanh --hidden 3 --epochs 1 --output c.h5",
    "predict c.h5 t.csv --targets 1 --device cpu",
    *(
        f"kernels ladder {operation} --device cpu --runs 1"
        for operation in (
            "gemm --sizes m=3,k=4,n=5",
            "conv2d --rows 2 --sizes channels=2,height=5,width=5,filters=3,side=3,padding=1",
            "mlp --rows 4 --widths 3,2,1",
            "train --rows 64 --widths 3,2,1",
            "spmspm --dataset p.h5",
        )
    ),
]


@pytest.mark.timeout(600)  # where nothing is compiled yet
def test_no_later_run_compiles(tmp_path: Path) -> None:
    program = PROGRAM.replace("LINES", repr(LINES))
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen.pop("functions") > 40
    assert seen == {"unregistered": [], "missing": [], "late": [], "more": [], "arrays": []}
