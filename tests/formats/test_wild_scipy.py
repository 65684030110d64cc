"""SciPy's matrices whose parts were written over at random: refused by an error of this package, or read."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from sparsenn import COO, CSC, CSR, Network, Session, SparseLinear
from sparsenn.errors import MatrixError, ShapeError

PARTS = ("data", "indices", "indptr", "row", "col", "offsets", "rows")
NUMBERS = (0, -1, 2, 9, 1000, 65_536, 2**31 - 1, -(2**31), 2**32, 2**63 - 1, -(2**63), 0.5, np.nan)
TYPES = (np.int8, np.uint8, np.uint16, np.uint32, np.int64, np.uint64, np.float32, np.complex64, np.bool_, "U3", object)
SEEDS = 400


def with_a_wild_number(part: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    number: Any = rng.choice(np.array(NUMBERS, object))
    if part.dtype.kind == "O":  # of lists
        wild = part.copy()
        if wild.size:
            wild[rng.integers(wild.size)] = [number] * int(rng.integers(4))
        return wild
    wild = part.astype(float if isinstance(number, float) or part.dtype.kind == "f" else np.int64)
    if wild.size:
        wild.ravel()[rng.integers(wild.size)] = number
    return wild


WAYS: tuple[Callable[[np.ndarray, np.random.Generator], Any], ...] = (
    lambda part, rng: part.ravel()[: rng.integers(part.size + 1)],
    lambda part, rng: np.concatenate([part, part]),
    lambda part, rng: part[::-1],
    lambda part, rng: part[None],
    lambda part, rng: list(part),
    lambda part, rng: np.zeros((0,) * int(rng.integers(4))),
    lambda part, rng: part.astype(rng.choice(np.array(TYPES, object))),
    *(with_a_wild_number,) * 3,
)


def wild(form: str, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    shape = int(rng.integers(12)), 7
    matrix = sp.random_array(shape, density=rng.random(), random_state=rng).asformat(form)
    for _ in range(rng.integers(1, 3)):
        names = [name for name in PARTS if hasattr(matrix, name)]
        if not names or rng.random() < 0.1:
            matrix._shape = (int(rng.integers(30)), 7)
            continue
        name = rng.choice(names)
        with suppress(ValueError, TypeError, IndexError, AttributeError):  # of SciPy's setters, and of NumPy
            setattr(matrix, name, rng.choice(np.array(WAYS, object))(np.asarray(getattr(matrix, name)), rng))
    return matrix


SESSION = Session(Network((SparseLinear.from_scipy(sp.eye_array(7, format="csc", dtype=np.float32)),)), device="cpu")


@pytest.mark.filterwarnings("ignore")  # of NumPy, on numbers that do not fit
@pytest.mark.parametrize("form", ["csr", "csc", "coo", "bsr", "dia", "lil", "dok"])
def test_no_matrix_ends_in_another_error(form: str) -> None:
    read = 0
    for seed in range(SEEDS):
        for take in (CSR.from_scipy, CSC.from_scipy, COO.from_scipy, SESSION):
            with suppress(MatrixError, ShapeError):
                take(wild(form, seed))
                read += 1
    assert 0 < read < 4 * SEEDS  # some are sound all the same
