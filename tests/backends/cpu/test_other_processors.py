"""Processors with shorter vectors than this one: the same bits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from llvmlite.binding import get_host_cpu_features

from sparsenn import Conv2d, Network, ReLU, Session
from sparsenn.backends.cpu.tiles import VECTOR

AVX2 = (
    "+64bit,+avx,+avx2,+bmi,+bmi2,+cmov,+cx8,+f16c,+fma,+fxsr,+lzcnt,+mmx,+movbe,+popcnt,"
    "+sse,+sse2,+sse3,+sse4.1,+sse4.2,+ssse3"
)


def outputs() -> list[np.ndarray]:
    """Return outputs of sparse layers, of few rows and many, and of convolutions."""
    rng = np.random.default_rng(0)
    weights = [sp.random_array((600, 70), density=0.2, rng=rng), sp.random_array((70, 300), density=0.1, rng=rng)]
    layers = Network.from_scipy([matrix.astype(np.float32).tocsc() for matrix in weights], bias=0.1, activation=ReLU())
    rows = rng.normal(size=(200, 600)).astype(np.float32)
    found = [
        Session(layers, device="cpu", kernel=kernel)(rows[:count]) for kernel, count in (("rows", 3), ("panel", 200))
    ]
    filters = (rng.normal(size=(8, 3, 3, 3)) * (rng.random((8, 3, 3, 3)) < 0.3)).astype(np.float32)
    images = Network((Conv2d(filters, 0.1, ReLU(), padding=1),), image=(3, 20, 20))
    return [*found, Session(images, device="cpu", kernel="conv_direct")(rng.normal(size=(5, 1200)).astype(np.float32))]


@pytest.mark.skipif(not get_host_cpu_features().get("avx2"), reason="the processor has no AVX2")
def test_vectors_of_avx2_give_the_same_bits() -> None:
    code = "import sys, test_other_processors as test; sys.stdout.buffer.write(test.written())"
    environment = os.environ | {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": AVX2}
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, check=True, timeout=600
    )
    lanes, *bits = done.stdout.split(b"\n", 1)
    assert int(lanes) == 8
    assert bits[0] == written().split(b"\n", 1)[1]


def written() -> bytes:
    """Return the numbers of a vector, and all outputs' bits."""
    return b"%d\n" % VECTOR + b"".join(each.tobytes() for each in outputs())
