"""Chains whose rows are in half precision, of every kernel that has them: on a GPU."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import numpy as np
import pytest

from sparsenn import Session
from sparsenn.backends.chains import SparseProblem
from sparsenn.backends.cuda.sparse.chunks import half as half_chunks
from sparsenn.backends.cuda.sparse.chunks import tiling
from sparsenn.backends.cuda.sparse.chunks.tiling import HALF_BLOCKS
from sparsenn.backends.cuda.sparse.half_chain import HalfChain, bound_of
from sparsenn.backends.cuda.sparse.queued_chain import prepare_chain
from sparsenn.backends.cuda.sparse.stack import upload
from sparsenn.backends.cuda.sparse.two_of_four import kernel as tensor
from sparsenn.backends.cuda.sparse.two_of_four.input_order import RUNS, UNIT, order_inputs, padded
from sparsenn.backends.kernel_records import SparseKernel
from sparsenn.formats import from_dense
from sparsenn.layers import Identity, ReLU, Sigmoid, SparseLinear, Tanh
from sparsenn.network import Network

pytestmark = pytest.mark.gpu


@dataclass(frozen=True)
class Way:
    """How a chain is made, and what a layer may be off by: in parts of a row's largest output."""

    name: str
    made: Callable[..., HalfChain]
    allowed: float = 4e-3

    def __str__(self):
        return self.name


SPLIT = Way("two_of_four, split", partial(tensor.TensorChain, "two_of_four_float32", tensor.SPLIT), 2e-6)
SINGLE = Way("two_of_four", partial(tensor.TensorChain, "two_of_four_tf32", tensor.SINGLE))
CHUNKS = Way("chunks", partial(half_chunks.HalfChunkChain, "chunks_tf32"))
ACTIVATIONS = [ReLU(), ReLU(0.5), Sigmoid(), Tanh(), Identity()]
KERNELS = (*tensor.KERNELS, *half_chunks.KERNELS)

ways = pytest.mark.parametrize("way", [SINGLE, SPLIT, CHUNKS], ids=str)
kernels = pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)


def layers_of(rng, widths, share, activation=None):
    def layer(inputs, outputs):
        weights = rng.normal(size=(inputs, outputs)) * (rng.random((inputs, outputs)) < share)
        bias = rng.normal(size=outputs).astype(np.float32)
        return SparseLinear.from_scipy(from_dense(weights.astype(np.float32)).to_scipy(), bias, activation or ReLU())

    return [layer(*shape) for shape in pairwise(widths)]


def exact(layers, rows):
    values = rows.astype(np.float64)
    for layer in layers:
        values = layer.activation(values @ layer.weights.to_scipy().toarray().astype(np.float64) + layer.bias_vector())
    return values


def uploaded(layers):
    return upload(0, layers, [np.ones(layer.outputs, np.int64) for layer in layers])


def ready(layers, way, rows):
    stack = uploaded(layers)
    return prepare_chain(way.made, 4, stack, SparseProblem(rows, "dense", len(layers), False))


def run(chain, rows, counting=False):
    import cupy

    return cupy.asnumpy(chain.run(cupy.asarray(rows), counting).features)


def only(block, monkeypatch):
    """Have chunks of halves take that shape of block."""
    monkeypatch.setattr(tiling, "HALF_BLOCKS", (block,))
    monkeypatch.setattr(tiling, "TILE_ROWS", (block.rows,))


def assert_near(found, right, allowed):
    largest = np.maximum(np.abs(right).max(axis=1, initial=0), 1e-30)
    assert found.shape == right.shape
    assert np.all(np.abs(found - right).max(axis=1, initial=0) <= allowed * largest)


def precise(kernel):
    return SPLIT.allowed if kernel.precision == "float32" else SINGLE.allowed


def session_of(layers, kernel):
    return Session(Network(tuple(layers)), device="cuda", kernel=kernel.name, precision=kernel.precision)


@kernels
@pytest.mark.parametrize("share", [0.0, 0.05, 0.1, 0.2, 1.0])
def test_a_session_on_a_gpu(kernel: SparseKernel, share, rng):
    layers = layers_of(rng, (300, 700, 257, 33), share)
    given = rng.normal(size=(1000, 300)).astype(np.float32)
    session = session_of(layers, kernel)
    assert session.run(given).plan.precisions == (kernel.precision,) * 3
    assert_near(np.asarray(session(given)), exact(layers, given), 3 * precise(kernel))
    assert np.array_equal(session(given), session(given))


@ways
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
def test_any_activation_on_a_gpu(way, activation, rng):
    layers = layers_of(rng, (200, 300, 90), 0.1, activation)
    given = rng.normal(size=(500, 200)).astype(np.float32)
    found = run(ready(layers, way, 500), given)
    sums = exact([*layers[:-1], replace(layers[-1], activation=Identity())], given)  # which an activation may cut short
    largest = np.abs(sums).max(axis=1, keepdims=True)
    assert np.all(np.abs(found - exact(layers, given)) <= 2 * way.allowed * largest)


@kernels
def test_rows_of_halves_on_a_gpu(kernel, rng, cupy):
    layers = layers_of(rng, (300, 700, 33), 0.1)
    given = rng.normal(size=(1000, 300)).astype(np.float16)
    session = session_of(layers, kernel)
    found = session(cupy.asarray(given))
    assert found.dtype == (np.float16 if kernel.precision == "float16" else np.float32)
    assert_near(cupy.asnumpy(found).astype(np.float32), exact(layers, given), 2 * precise(kernel))
    kept = cupy.asnumpy(found)
    result = session.run(cupy.asarray(given), statistics=False)
    assert np.array_equal(result.categories, np.flatnonzero(kept.any(axis=1)))
    session(cupy.asarray(given[::-1].copy()))
    assert np.array_equal(cupy.asnumpy(found), kept)  # outputs are the caller's


@ways
@pytest.mark.parametrize("widths", [(500, 600, 500, 400), (500, 2000, 16, 700, 100, 1500, 64, 33)], ids=str)
def test_bits_do_not_depend_on_other_rows_on_a_gpu(way, widths, rng):
    layers = layers_of(rng, widths, 0.1)
    given = rng.normal(size=(9000, 500)).astype(np.float32)  # which are computed in slices
    chain = ready(layers, way, 9000)
    whole = run(chain, given)
    assert_near(whole, exact(layers, given), way.allowed * len(layers))
    assert all(np.array_equal(run(chain, given), whole) for _ in range(20))
    for first in range(0, 9000, 2000):
        part = given[first : first + 2000]
        assert np.array_equal(run(ready(layers, way, len(part)), part), whole[first : first + 2000])


@pytest.mark.parametrize("block", HALF_BLOCKS, ids=str)
def test_every_block_gives_the_same_bits_on_a_gpu(block, monkeypatch, rng):
    layers = layers_of(rng, (500, 1100, 400), 0.05)
    given = rng.normal(size=(700, 500)).astype(np.float32)
    expected = run(ready(layers, CHUNKS, 700), given)
    assert_near(expected, exact(layers, given), 2 * CHUNKS.allowed)
    only(block, monkeypatch)
    assert np.array_equal(run(ready(layers, CHUNKS, 700), given), expected)


@pytest.mark.parametrize("way", [SINGLE, SPLIT], ids=str)
@pytest.mark.parametrize(
    ("units", "left_over"),
    [([0, 1, 2, 3, 4, 5, 7], []), ([0, 1, 3], []), ([8], [0, 1, 2, 3, 5, 9, 15]), ([7], [])],
    ids=["one missing", "half a slab", "out of order", "one"],
)
def test_units_that_are_not_neighbours_on_a_gpu(way, units, left_over, monkeypatch, rng):
    monkeypatch.setattr(tensor, "order_in_runs", lambda weights, _: (4, padded(np.arange(weights.shape[0]), UNIT)))
    weights = np.zeros((16, UNIT, 9), np.float32)
    weights[units, ::2] = rng.normal(size=(len(units), 4, 9))
    weights[left_over] = rng.normal(size=(len(left_over), UNIT, 9))
    layer = SparseLinear.from_scipy(from_dense(weights.reshape(128, -1)).to_scipy(), 0, Identity())
    given = rng.normal(size=(20, 128)).astype(np.float32)
    assert_near(run(ready([layer], way, 20), given), exact([layer], given), way.allowed)


@pytest.mark.parametrize("run_length", RUNS)
@pytest.mark.parametrize("inputs", [100, 93, 3])
@pytest.mark.parametrize(
    ("way", "kind"),
    [(SPLIT, np.float32), (SINGLE, np.float32), (SINGLE, np.float16)],
    ids=["split", "single", "halves"],
)
def test_inputs_that_stay_together_on_a_gpu(way, kind, inputs, run_length, monkeypatch, rng):
    monkeypatch.setattr(tensor, "order_in_runs", lambda weights, _: (run_length, order_inputs(weights, run_length)))
    layers = layers_of(rng, (inputs, 70), 0.2)
    given = rng.normal(size=(50, inputs)).astype(kind)
    found = run(ready(layers, way, 50), given)
    assert_near(found.astype(np.float32), exact(layers, given), way.allowed)


@ways
def test_rows_of_any_size_on_a_gpu(way, rng):
    layers = layers_of(rng, (48, 40, 30), 0.2, Identity())
    layers = [SparseLinear(layer.weights, 0.0, Identity()) for layer in layers]
    given = rng.normal(size=(40, 48)) * 10.0 ** np.linspace(-20, 30, 40)[:, None]
    given = given.astype(np.float32)
    assert_near(run(ready(layers, way, 40), given), exact(layers, given), way.allowed * 2)


@ways
def test_what_is_no_number_stays_in_its_row_on_a_gpu(way, rng):
    layers = layers_of(rng, (30, 20, 10), 0.3, Identity())
    given = rng.normal(size=(20, 30)).astype(np.float32)
    right = exact(layers, given)
    given[3, 5], given[7, 0] = np.inf, np.nan
    with np.errstate(invalid="ignore", over="ignore"):
        found = run(ready(layers, way, 20), given)
    others = np.delete(np.arange(20), [3, 7])
    assert_near(found[others], right[others], way.allowed * 2)
    assert not np.isfinite(found[[3, 7]]).all(axis=1).any()
    assert way is not CHUNKS or np.isnan(found[[3, 7]]).all()


@ways
def test_counts_on_a_gpu(way, rng):
    layers = layers_of(rng, (30, 20, 10), 0.3)
    chain, given = ready(layers, way, 20), rng.normal(size=(20, 30)).astype(np.float32)
    found, counts = run(chain, given, counting=True), chain.counts()
    assert np.array_equal(found, run(chain, given))
    assert counts[0].active_inputs is None
    assert (counts[1].active_inputs, counts[1].nonzeros) == (found.any(axis=1).sum(), np.count_nonzero(found))
    assert [one.performed_edges for one in counts] == [20 * layer.edges for layer in layers]


def test_a_bound_holds_for_every_row(rng):
    layers = [*layers_of(rng, (30, 20), 0.3, Identity()), *layers_of(rng, (20, 9), 0.0), *layers_of(rng, (9, 9), 1.0)]
    for layer, device_layer in zip(layers, uploaded(layers).layers, strict=True):
        reach, offset, most = bound_of(device_layer)
        sizes = np.abs(layer.weights.to_scipy().toarray().astype(np.float64)).sum(axis=0)
        assert sizes.max() <= reach <= 1.00001 * sizes.max()
        assert (offset, most) == (np.abs(layer.bias_vector()).max(), np.inf)
