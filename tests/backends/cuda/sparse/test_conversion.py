"""Conversion on a GPU, as a whole, against SciPy."""

import numpy as np
import pytest
from hypothesis import given
from strategies import coo_matrices

from sparsenn import backends
from sparsenn.backends.cuda.runtime.device import cupy
from sparsenn.backends.cuda.sparse import conversion
from sparsenn.formats import COO, CSC, CSR

pytestmark = pytest.mark.gpu

WIDTHS = (1, 31, 33, 1000, 40_000, 70_000)


def shuffled(shape, density, rng):
    """Unique positions in shuffled order, with values."""
    count = int(density * shape[0] * shape[1])
    places = rng.choice(shape[0] * shape[1], count, replace=False)
    return COO.from_arrays(shape, places // shape[1], places % shape[1], rng.normal(size=count).astype(np.float32))


def device(matrix):
    cp = cupy()
    return COO(matrix.shape, *(cp.asarray(array) for array in (matrix.rows, matrix.columns, matrix.values)))


def host(matrix):
    cp = cupy()
    return type(matrix)(
        matrix.shape, *(cp.asnumpy(array) for array in (matrix.indptr, matrix.indices, matrix.values))
    ).validate()


def same(found, expected):
    assert np.array_equal(found.indptr, expected.indptr)
    assert np.array_equal(found.indices, expected.indices)
    assert np.array_equal(found.expanded_values(), expected.expanded_values())


@given(matrix=coo_matrices())
def test_coo_becomes_csr_and_csc(matrix):
    same(host(conversion.coo_to_csr(device(matrix))), CSR.from_scipy(matrix.to_scipy()))
    placed = device(matrix)
    columns = conversion.compress(CSC, placed.shape, placed.columns, placed.rows, placed.values)
    same(host(columns), CSC.from_scipy(matrix.to_scipy()))


@pytest.mark.parametrize("width", WIDTHS)
def test_wide_and_narrow_matrices_become_csr(width, rng):
    matrix = shuffled((300, width), 0.1, rng)
    same(host(conversion.coo_to_csr(device(matrix))), CSR.from_scipy(matrix.to_scipy()))


def test_rows_in_coo_are_converted_on_the_device(rng):
    from cupyx.scipy.sparse import coo_matrix

    backend = backends.backend_for("cuda")
    matrix = shuffled((80, 200), 0.3, rng)
    entries = device(matrix)
    given = coo_matrix((entries.values, (entries.rows, entries.columns)), shape=matrix.shape)
    same(backend.fetch(backend.place(backend.device_rows(given))).validate(), CSR.from_scipy(matrix.to_scipy()))


def test_conversion_gives_the_same_bits_in_every_run(rng):
    matrix = shuffled((500, 900), 0.2, rng)
    first = host(conversion.coo_to_csr(device(matrix)))
    for _ in range(5):
        again = host(conversion.coo_to_csr(device(matrix)))
        assert again.indices.tobytes() == first.indices.tobytes()
        assert again.values.tobytes() == first.values.tobytes()
