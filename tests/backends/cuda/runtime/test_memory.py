"""Copies to the device through pinned memory, with a CuPy whose copies are late."""

import numpy as np
import pytest
from late_cupy import LateCuPy
from sparse_layers import sparse_layer

from sparsenn.backends.cuda.runtime import memory
from sparsenn.backends.cuda.runtime.memory import ALIGNMENT, Staging
from sparsenn.backends.cuda.sparse.stack import prepared_bytes


@pytest.fixture
def late(monkeypatch):
    """With room for so little that most arrays travel in parts; `begun` has the bytes of each copy."""
    fake = LateCuPy()
    fake.begun, copy = [], fake.cuda.runtime.memcpyAsync
    fake.cuda.runtime.memcpyAsync = lambda *given: fake.begun.append(given[2]) or copy(*given)
    monkeypatch.setattr(memory, "cupy", lambda: fake)
    monkeypatch.setattr(memory, "STAGED_BYTES", 64)
    return fake


def waiting(late):
    """How many copies have not been made yet."""
    return sum(callable(step) for stream in late.streams for step in stream.queue)


def test_arrays_of_any_size_arrive_whole(late, rng):
    staging = Staging()
    for _ in range(3):
        arrays = [
            rng.integers(0, 50, count).astype(kind)
            for count in (0, 1, 7, 16, 64, 65, 300, 3)
            for kind in (np.uint16, np.float32, np.int64)
        ]
        arrays.append(np.arange(40, dtype=np.int32)[::2])
        with staging.copying() as to_device:
            copies = [*to_device(arrays), *to_device(arrays[:3])]
        for array, copy in zip([*arrays, *arrays[:3]], copies, strict=True):
            assert copy.dtype == array.dtype
            assert np.array_equal(copy, array)


def test_small_arrays_travel_together_or_are_not_waited_for_one_by_one(late, monkeypatch):
    monkeypatch.setattr(memory, "STAGED_BYTES", 9 * ALIGNMENT)
    arrays = [np.full(2, number, np.int32) for number in range(8)]
    with Staging().copying() as to_device:
        copies = to_device(arrays)
    assert late.begun == [8 * ALIGNMENT]
    assert np.array_equal(copies, arrays)
    with Staging().copying() as to_device:
        for number in range(1, 9):
            to_device([np.zeros(2, np.int32)])
            assert waiting(late) == number
    assert waiting(late) == 0


def test_each_array_begins_where_one_of_its_own_would(late):
    with Staging().copying() as to_device:
        copies = to_device([np.zeros(size, np.uint8) for size in (3, 0, ALIGNMENT, ALIGNMENT + 1, 5)])
    begins = [copy.data.ptr - copies[0].data.ptr for copy in copies]
    assert begins == [0, ALIGNMENT, ALIGNMENT, 2 * ALIGNMENT, 4 * ALIGNMENT]


def test_copies_have_ended_also_after_an_error(late):
    staging = Staging()
    found = []

    def fail():
        with staging.copying() as to_device:
            found.extend(to_device([np.arange(5)]))
            raise ValueError("oops")

    with pytest.raises(ValueError, match="oops"):
        fail()
    assert np.array_equal(found[0], np.arange(5))
    assert late.current() is late.default
    with staging.copying() as to_device:
        found.extend(to_device([np.arange(6)]))
    assert np.array_equal(found[1], np.arange(6))


@pytest.mark.parametrize("iso", [True, False])
def test_the_estimate_covers_what_is_uploaded_and_packed(rng, iso):
    dense = (rng.random((90, 70)) < 0.2) * (np.ones((90, 70)) if iso else rng.random((90, 70)))
    layer = sparse_layer(dense, -0.1)
    weights, degrees = layer.weights, np.diff(layer.weights.indptr)
    uploaded = weights.nbytes + layer.bias_vector().nbytes + 8 * layer.outputs
    packed = 8 * int((degrees + degrees % 2).sum())
    assert weights.iso is iso
    assert uploaded + 2 * packed < prepared_bytes(layer) < 2 * (uploaded + 2 * packed)
