"""The time that numba compiles: counted once, and none where it has compiled before."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numba

from sparsenn.runtime.jit import compile_seconds

PROGRAM = """
from sparsenn.runtime.jit import compile_seconds, compiled, load_seconds

@compiled
def twice(number):
    return 2 * number

assert compile_seconds() == 0
assert twice(21) == 42
print(compile_seconds(), load_seconds())
"""


def test_functions_that_call_others_count_once() -> None:
    @numba.njit
    def inner(number: int) -> int:
        return number + 1

    @numba.njit
    def outer(number: int) -> int:
        return int(inner(number) + inner(2 * number))

    before, start = compile_seconds(), time.perf_counter()
    assert outer(1) == 5
    spent, whole = compile_seconds() - before, time.perf_counter() - start
    assert 0.001 < spent <= whole
    assert outer(2) == 8
    assert compile_seconds() == before + spent


def test_none_where_it_has_compiled_before(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    settings = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}

    def told() -> tuple[float, float]:
        done = subprocess.run([sys.executable, str(script)], env=settings, capture_output=True, text=True, check=True)
        compiled, loaded = map(float, done.stdout.split())
        return compiled, loaded

    assert told()[0] > 0.001
    compiled, loaded = told()
    assert compiled == 0
    assert loaded > 0.0001
