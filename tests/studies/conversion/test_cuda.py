"""The steps of conversion on a GPU: every rung of each against NumPy."""

import numpy as np
import pytest

from sparsenn.backends.cuda.runtime.device import cupy
from sparsenn.studies.ladder import rungs_of

pytestmark = pytest.mark.gpu

WIDTHS = (1, 31, 33, 1000, 40_000, 70_000)


def steps(operation):
    return pytest.mark.parametrize("entry", rungs_of(operation, "cuda"), ids=lambda entry: entry.name)


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
