"""Memory that runs out on a GPU: batches are cut by themselves, and where that does not help, it is said."""

import re
from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sp
from scarce_memory import limited, occupied, settle
from sessions import parts

from sparsenn.engine import Session
from sparsenn.errors import OutOfMemoryError
from sparsenn.formats import CSR, from_dense
from sparsenn.layers import Conv2d, Flatten, Linear, MaxPool2d, ReLU, Softmax, SparseLinear
from sparsenn.network import Network

MIB = 1 << 20
ROWS, LEFT = 200_000, 192 * MIB  # rows that do not fit into the bytes that are left

MOST_ATTEMPTS = 30
"""Times that a batch may be cut. Halving 200,000 rows down to one takes 18."""


pytestmark = [pytest.mark.gpu, pytest.mark.alone]
WAYS = pytest.mark.parametrize("way", [occupied, limited])


# ---- Problems whose numbers are multiples of powers of two, so that all sums are exact in float32 -----------------


def bits(rng, rows, width):
    return from_dense(rng.random((rows, width), np.float32) < 0.1)


def sparse(rng, rows):
    widths = (256, 1024, 1024, 8)
    layers = []
    for inputs, outputs in pairwise(widths):
        weights = rng.choice([-0.25, 0.25, 0.5], (inputs, outputs)) * (rng.random((inputs, outputs)) < 32 / inputs)
        layers.append(SparseLinear.from_scipy(sp.csc_array(weights.astype(np.float32)), -1.0, ReLU(4)))
    return Network(tuple(layers)), bits(rng, rows, widths[0])


def dense(rng, rows, widths):
    layers = tuple(
        Linear(rng.integers(-2, 3, (inputs, outputs)) / 8, rng.integers(-4, 1, outputs) / 2, ReLU(4))
        for inputs, outputs in pairwise(widths)
    )
    return Network(layers), bits(rng, rows, widths[0])


def images(rng, rows):
    layers = (
        *(Conv2d(rng.integers(-2, 3, (16, 1, 3, 3)), rng.integers(-3, 1, 16), ReLU(), padding=1), MaxPool2d(2)),
        *(Flatten(), Linear(rng.integers(-1, 2, (1024, 8)) / 4, np.full(8, -4.0), ReLU())),
    )
    return Network(layers, (1, 16, 16)), bits(rng, rows, 256)


PROBLEMS = {
    "sparse": (sparse, "auto", {}),
    "sparse, by chunks": (sparse, "chunks", {}),
    "sparse, by tile": (sparse, "tile", {}),
    "sparse, weights streamed": (sparse, "chunks", {"weight_memory": 1}),
    "sparse, every row kept": (sparse, "auto", {"compaction": False, "deduplication": False}),
    "dense": (lambda rng, rows: dense(rng, rows, (64, 1024, 1024, 8)), "auto", {}),
    "dense, own product": (lambda rng, rows: dense(rng, rows, (64, 1024, 1024, 8)), "matmul_relu", {}),
    "dense, narrow": (lambda rng, rows: dense(rng, 2 * rows, (256, 128, 8)), "auto", {}),
    "convolution": (lambda rng, rows: images(rng, rows // 4), "auto", {}),
    "convolution, on tensor cores": (lambda rng, rows: images(rng, rows // 4), "conv_implicit_float32", {}),
    "convolution, by weights": (lambda rng, rows: images(rng, rows // 4), "conv_sparse_direct", {}),
    "convolution, by columns": (lambda rng, rows: images(rng, rows // 4), "conv_unrolled", {}),
}


# ---- Batches that are cut -----------------------------------------------------------------------------------------


def session_on_gpu(network, kernel, **options):
    return Session(network, device="cuda", kernel=kernel, **options)


@pytest.mark.parametrize("problem", PROBLEMS)
@WAYS
def test_a_batch_for_which_memory_does_not_suffice_is_cut_by_itself(rng, monkeypatch, way, problem, cupy):
    make, kernel, options = PROBLEMS[problem]
    network, inputs = make(rng, ROWS)
    rows, failures, pool = inputs.shape[0], [], cupy.get_default_memory_pool()

    def watched():
        session = session_on_gpu(network, kernel, batch_size=rows, **options)
        release = session.backend.release

        def failed():
            failures.append(way)
            assert len(failures) <= MOST_ATTEMPTS, "a batch is cut again and again"
            release()

        monkeypatch.setattr(session.backend, "release", failed)
        return session

    with watched() as session:
        expected = session.run(inputs)
        right = parts(expected.outputs)  # outputs leave the device when they are asked for
        assert (expected.notes, len(expected.batches), failures) == ((), 1, [])
    assert 0 < expected.categories.size < rows
    settle(cupy)
    held = pool.used_bytes()
    with way(cupy, LEFT):
        with watched() as session:
            failures.clear()
            found = session.run(inputs)
            outputs = parts(found.outputs)
            assert failures
        settle(cupy)
        assert pool.used_bytes() <= held
    sizes = [batch.inputs for batch in found.batches]
    told = re.fullmatch(
        rf"There was not enough memory for {rows:,} samples at a time; ([\d,]+) were used\.", *found.notes
    )
    taken = int(told[1].replace(",", ""))
    assert taken in sizes
    assert rows / 2000 < taken <= max(sizes) <= rows / 2
    assert sum(sizes) == rows
    assert np.array_equal(found.categories, expected.categories)
    assert outputs == right
    assert [entry.nonzeros for entry in found.statistics] == [entry.nonzeros for entry in expected.statistics]


@WAYS
def test_where_one_row_does_not_fit_it_is_said_and_nothing_is_spoilt(rng, way, cupy):
    """An image's outputs take more than is left; the image itself does not."""
    side = 2048
    layers = (Conv2d(rng.integers(-2, 3, (8, 1, 3, 3)), None, ReLU()), Softmax(), MaxPool2d(64))
    network = Network(layers, (1, side, side))
    few = [np.sort(rng.choice(side * side, 1000, replace=False)) for _ in range(3)]
    inputs = CSR((3, side * side), np.arange(4) * 1000, np.concatenate(few).astype(np.int32), np.ones(1, np.float32))
    with session_on_gpu(network, "auto", batch_size=3) as session:
        expected = session.run(inputs).outputs
    session = session_on_gpu(network, "auto", batch_size=3)
    with way(cupy, 64 * MIB), pytest.raises(OutOfMemoryError) as caught:
        session.run(inputs)
    said = str(caught.value)
    assert caught.value.fitting == 0
    assert re.search(r"there is not enough memory on the device for \d rows; not a single row fits: free memory", said)
    assert said.endswith("or use device cpu")
    assert said.splitlines() == [said]
    del caught
    again = session.run(inputs)
    assert again.notes == ()
    assert parts(again.outputs) == parts(expected)


@WAYS
def test_weights_that_do_not_fit_are_named(rng, way, cupy):
    weights = rng.random((1000, 6000), np.float32)
    weights[weights < 0.75] = 0
    network, inputs = Network((SparseLinear.from_scipy(sp.csc_array(weights), -1.0, ReLU()),)), bits(rng, 3, 1000)
    with session_on_gpu(network, "chunks", batch_size=3) as session:
        expected = session.run(inputs).outputs
    session = session_on_gpu(network, "chunks", batch_size=3)
    with way(cupy, 4 * MIB), pytest.raises(OutOfMemoryError) as caught:
        session.run(inputs)
    said = str(caught.value)
    assert re.fullmatch(
        r"[0-9,]+ bytes of weights: the device has [0-9,]+ bytes left; free some, lower --weight-memory, "
        r"or use device cpu",
        said,
    )
    del caught
    assert parts(session.run(inputs).outputs) == parts(expected)
