"""Conversion on a GPU: every rung of every step against SciPy and NumPy."""

import numpy as np
import pytest
from hypothesis import given
from strategies import coo_matrices

from sparsenn import backends
from sparsenn.backends.cuda.loader import cupy
from sparsenn.backends.cuda.sparse import conversion
from sparsenn.formats import COO, CSC, CSR

pytestmark = pytest.mark.gpu

STEPS = {operation: backends.variants(operation, "cuda") for operation in ("histogram", "scan", "binning", "sort")}
WIDTHS = (1, 31, 33, 1000, 40_000, 70_000)


def steps(operation):
    return pytest.mark.parametrize("entry", STEPS[operation], ids=lambda entry: entry.name)


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
    columns = conversion.coo_to_csc(device(matrix))
    same(host(columns), CSC.from_scipy(matrix.to_scipy()))
    same(host(conversion.csc_to_csr(columns)), CSR.from_scipy(matrix.to_scipy()))


@pytest.mark.parametrize("width", WIDTHS)
def test_wide_and_narrow_matrices_become_csr(width, rng):
    matrix = shuffled((300, width), 0.1, rng)
    same(host(conversion.coo_to_csr(device(matrix))), CSR.from_scipy(matrix.to_scipy()))


def test_placing_coo_converts_it_on_the_device(rng):
    backend = backends.backend_for("cuda")
    matrix = shuffled((80, 200), 0.3, rng)
    same(backend.fetch(backend.place(matrix)).validate(), CSR.from_scipy(matrix.to_scipy()))


@steps("histogram")
@pytest.mark.parametrize("groups", WIDTHS)
@pytest.mark.parametrize("entries", [0, 1, 33, 100_000])
def test_histogram_counts(entry, groups, entries, rng):
    dtype = np.uint16 if groups <= 1 << 16 else np.int32
    for keys in (rng.integers(0, groups, entries), np.sort(rng.integers(0, groups, entries))):
        found = entry.launch(cupy().asarray(keys.astype(dtype)), groups)
        assert np.array_equal(cupy().asnumpy(found), np.bincount(keys, minlength=groups))


@steps("scan")
@pytest.mark.parametrize("groups", [0, 1, 31, 1024, 1025, 5000, 2_000_003])
def test_scan_adds_up(entry, groups, rng):
    counts = rng.integers(0, 1 << 33, groups)
    found = entry.launch(cupy().asarray(counts))
    assert np.array_equal(cupy().asnumpy(found), np.concatenate([[0], np.cumsum(counts)]))


@steps("binning")
@pytest.mark.parametrize("iso", [False, True])
def test_binning_moves_each_entry_into_its_group(entry, iso, rng):
    cp = cupy()
    keys, payload = rng.integers(0, 50, 20_000).astype(np.uint16), rng.permutation(20_000).astype(np.int32)
    values = np.ones(1, np.float32) if iso else payload.astype(np.float32)
    offsets = np.concatenate([[0], np.cumsum(np.bincount(keys, minlength=50))])
    found, moved = map(cp.asnumpy, entry.launch(*map(cp.asarray, (keys, payload, values, offsets))))
    for group in range(50):
        inside = slice(offsets[group], offsets[group + 1])
        assert np.array_equal(np.sort(found[inside]), np.sort(payload[keys == group]))
    assert np.array_equal(moved, values if iso else found.astype(np.float32))


@steps("sort")
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("iso", [False, True])
def test_sort_orders_each_row(entry, width, iso, rng):
    cp = cupy()
    rows = [rng.permutation(width)[: rng.integers(0, min(width, 900) + 1)] for _ in range(40)]
    rows[3] = rows[3][:0]
    offsets = np.concatenate([[0], np.cumsum([row.size for row in rows])])
    indices = np.concatenate(rows).astype(np.uint16 if width <= 1 << 16 else np.int32)
    values = np.ones(1, np.float32) if iso else indices.astype(np.float32) + 0.5
    found, moved = map(cp.asnumpy, entry.launch(*map(cp.asarray, (offsets, indices, values)), width))
    assert np.array_equal(found, np.concatenate([np.sort(row) for row in rows]))
    assert np.array_equal(moved, values if iso else found.astype(np.float32) + 0.5)


def test_conversion_gives_the_same_bits_in_every_run(rng):
    matrix = shuffled((500, 900), 0.2, rng)
    first = host(conversion.coo_to_csr(device(matrix)))
    for _ in range(5):
        again = host(conversion.coo_to_csr(device(matrix)))
        assert again.indices.tobytes() == first.indices.tobytes()
        assert again.values.tobytes() == first.values.tobytes()
