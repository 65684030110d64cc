"""A first call on a GPU: nothing makes CuPy compile an operator of its own, which takes up to a second each."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import sparsenn.backends.cuda

FOLDER = Path(sparsenn.backends.cuda.__file__).parent

COPIES = frozenset(
    (
        *("cuda", "ndarray", "asnumpy", "asarray", "empty", "empty_like", "zeros", "zeros_like", "from_dlpack"),
        *("RawModule", "get_default_memory_pool", "__version__", "ascontiguousarray"),
    )
)
"""What of CuPy allocates, clears or copies memory, or manages what is compiled."""

OPERATORS = {"double.py": None, "transfer/incoming.py": {"_by_row", "_entries"}}
"""Where operators may stay: float64, and matrices of CuPy's other formats.
All functions of a file, or some."""


def used_of_cupy(source: str) -> Iterator[tuple[str, str]]:
    """Yield functions, and the names that they use of CuPy."""
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef):
            for node in ast.walk(function):
                if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("cp", "cupy()"):
                    yield function.name, node.attr


def test_sources_use_no_operators_of_cupys() -> None:
    found = {}
    for path in FOLDER.rglob("*.py"):
        name = path.relative_to(FOLDER).as_posix()
        allowed = OPERATORS.get(name, set())
        if allowed is not None:
            used = {(function, used) for function, used in used_of_cupy(path.read_text(encoding="utf-8"))}
            found[name] = {pair for pair in used if pair[1] not in COPIES and pair[0] not in allowed}
    assert not {name: pairs for name, pairs in found.items() if pairs}


PROGRAM = """
import json
import traceback

import cupy
import numpy as np
import scipy.sparse as sp
from cupy.cuda import nvrtc
from cupyx.scipy.sparse import csr_matrix

create, sources = nvrtc.createProgram, []

def create_and_log(source, *rest):
    if source.startswith("#line 1 "):
        sources.append(source[:60])
    elif source.strip() and any("/sparsenn/" in frame.filename for frame in traceback.extract_stack()):
        sources.append(source[-900:] + "".join(traceback.format_stack(limit=12)))
    return create(source, *rest)

nvrtc.createProgram = create_and_log

from sparsenn import (Add, AvgPool2d, Concatenate, Conv2d, Flatten, Linear, MaxPool2d, Multiply, Network, Node, ReLU,
                      Session, SparseLinear)

rng = np.random.default_rng(1)

def sparse(inputs, outputs, share):
    return SparseLinear.from_scipy(sp.random(inputs, outputs, share, "csc", np.float32, rng), -0.1)

def conv(channels, filters):
    return Conv2d(rng.normal(size=(filters, channels, 3, 3)) / 9, None, ReLU(), padding=1)

def linear(inputs, outputs):
    return Linear(rng.normal(size=(inputs, outputs)) / 30)

networks = {
    "sparse": Network((sparse(600, 500, 0.02), sparse(500, 300, 0.05), sparse(300, 33, 0.3))),
    "dense": Network((linear(1001, 333), linear(333, 1001))),
    "mixed": Network((linear(300, 200), sparse(200, 200, 0.02), sparse(200, 200, 0.02), linear(200, 30))),
    "narrow": Network((linear(60, 60), linear(60, 10))),
    "images": Network((conv(3, 8), conv(8, 8), Node(Add(ReLU()), (1, 2)), MaxPool2d(2), Node(conv(8, 4), (4,)),
                       Node(Concatenate(), (4, 5)), Flatten(), linear(12 * 64, 10)), (3, 16, 16)),
    "gates": Network((conv(3, 8), AvgPool2d(16), Node(Multiply(), (1, 2)), Node(Multiply(ReLU()), (1, 3)), Flatten(),
                      linear(8 * 256, 10)), (3, 16, 16)),
}
for name, network in networks.items():
    for precision in ("float32", "tf32", "float16"):
        session = Session(network, device="cuda", precision=precision)
        for rows in (1, 300, 3000):
            given = rng.random((rows, network.inputs), dtype=np.float32)
            session(given), session(cupy.asarray(given)), session(cupy.asarray(given.astype(np.float16)))
        session.run(given)
        if name == "sparse":
            given = sp.csr_matrix((given < 0.1).astype(np.float32))
            session(given), session.run(given)
            parts = given.data, given.indices.astype(np.int32), given.indptr.astype(np.int32)
            session(csr_matrix(tuple(map(cupy.asarray, parts)), shape=given.shape))
        session.close()
print(json.dumps(sources))
"""


@pytest.mark.gpu
def test_a_first_call_compiles_kernels_of_this_package_alone(tmp_path: Path) -> None:
    place = {name: str(tmp_path / name) for name in ("SPARSENN_CACHE", "CUPY_CACHE_DIR")}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=os.environ | place, capture_output=True, text=True, check=True, timeout=300)
    compiled = json.loads(done.stdout.splitlines()[-1])
    assert len(compiled) > 10
    operators = [source for source in compiled if not source.startswith("#line 1 ")]
    assert not operators, operators[0]
