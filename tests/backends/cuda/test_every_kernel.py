"""Every kernel that a run may launch on a GPU, on small problems: short enough to run whole under each sanitizer.

What is asked here is only that answers are right; the tests of each kernel look closer. No test draws its problem at
random more than once, and none launches what it does not mean to, so that a sanitizer gets through all of them in
minutes: `tools/check_gpu --under racecheck tests/backends/cuda/test_every_kernel.py`.
"""

from __future__ import annotations

from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
import pytest
from oracle import outputs_of
from training_problems import problem

from sparsenn import CSR, Network, Node, Session, backends, infer
from sparsenn.backends import Kernel, launch_of
from sparsenn.backends.cuda.sparse.chunks import tiling
from sparsenn.backends.cuda.sparse.chunks.tiling import HALF_BLOCKS, TILE_ROWS, BlockShape, teams_of
from sparsenn.backends.cuda.sparse.resident import chain as resident
from sparsenn.errors import UsageError
from sparsenn.formats import COO, CSC, from_dense
from sparsenn.layers import Add, AvgPool2d, Conv2d, Flatten, Identity, Linear, MaxPool2d, ReLU, Softmax, SparseLinear

pytestmark = pytest.mark.gpu

ALLOWED = {"float32": 1e-4, "tf32": 1e-2, "float16": 2e-2}
"""In parts of the largest output."""


def sparse_network(rng: np.random.Generator, widths: list[int]) -> Network:
    """Layers of small multiples of 1/16, so that sums are exact, with about 12 weights an output."""
    made = []
    for shape in pairwise(widths):
        weights = rng.integers(-8, 9, shape) / 16 * (rng.random(shape) < min(1.0, 12 / shape[0]))
        bias = np.round(rng.normal(size=shape[1]) * 4) / 16
        made.append(SparseLinear.from_scipy(from_dense(weights.astype(np.float32)).to_scipy(), bias, ReLU(4)))
    return Network(tuple(made))


def rows_of(rng: np.random.Generator, rows: int, width: int, valued: bool) -> CSR:
    """Rows of which some are empty, and some equal."""
    matrix = (rng.random((rows, width)) < 0.3) * (rng.integers(1, 3, (rows, width)) if valued else 1.0)
    matrix[::5], matrix[3::7] = 0, matrix[min(3, rows - 1)]
    return from_dense(matrix.astype(np.float32))


def on_the_device(rows: CSR) -> Any:
    import cupy
    from cupyx.scipy.sparse import csr_matrix

    matrix = rows.to_scipy().tocsr().astype(np.float32)
    parts = (matrix.data, matrix.indices.astype(np.int32), matrix.indptr.astype(np.int32))
    return csr_matrix(tuple(map(cupy.asarray, parts)), shape=matrix.shape)


def assert_exact(network: Network, rows: CSR, **options: Any) -> None:
    """Bits are those of the CPU, for rows of the host, and for rows of the device, twice: a graph, and a replay."""
    expected = infer(network, rows, device="cpu", kernel="panel")
    session = Session(network, device="cuda", **options)
    for given in (rows, *[on_the_device(rows)] * 2):
        found = session.run(given)
        assert np.array_equal(found.dense, expected.dense)
        assert np.array_equal(found.categories, expected.categories)


@pytest.mark.parametrize(
    ("width", "rows", "valued"),
    [(31, 1, False), (64, 40, False), (130, 300, True), (1100, 3, False), (1100, 40, True), (64, 1500, False)],
)
def test_resident(width: int, rows: int, valued: bool, rng: np.random.Generator) -> None:
    assert_exact(sparse_network(rng, [width] * 8), rows_of(rng, rows, width, valued), kernel="resident")


@pytest.mark.parametrize(("width", "rows"), [(31, 1), (130, 7), (1100, 300)])
def test_few_rows(width: int, rows: int, rng: np.random.Generator) -> None:
    assert_exact(sparse_network(rng, [width] * 8), rows_of(rng, rows, width, True), kernel="few_rows")


IN_HALVES = (
    "two_of_four_float32",
    "two_of_four_tf32",
    "two_of_four_float16",
    "chunks_tf32",
    "chunks_float16",
    "few_rows_float16",
)


@pytest.mark.parametrize("kernel", IN_HALVES)
@pytest.mark.parametrize(("widths", "rows"), [([31, 5], 1), ([130, 700, 257, 33], 300)])
def test_rows_of_halves_between_layers(kernel: str, widths: list[int], rows: int, rng: np.random.Generator) -> None:
    network, given, precision = sparse_network(rng, widths), rows_of(rng, rows, widths[0], True), kernel.split("_")[-1]
    expected = infer(network, given, device="cpu").dense
    session = Session(network, device="cuda", kernel=kernel, precision=precision)
    for features in (given, *[on_the_device(given)] * 2):
        error = np.abs(session.run(features).dense - expected).max()
        assert error <= ALLOWED[precision] * np.abs(expected).max()


def test_resident_in_tiles_of_rows(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resident, "TILED_WIDTH", 48)
    monkeypatch.setattr(resident, "few_rows", lambda machine: 100)
    assert_exact(sparse_network(rng, [64] * 8), rows_of(rng, 400, 64, True), kernel="resident")


@pytest.mark.parametrize("tile", TILE_ROWS)
def test_chunks(tile: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparsenn.backends.cuda.sparse.chunks.tiling.TILE_ROWS", (tile,))
    network, rows = sparse_network(rng, [130, 77, 300, 33]), rows_of(rng, 70, 130, True)
    assert_exact(network, rows, kernel="chunks")
    expected = infer(network, rows, device="cpu", kernel="panel").dense
    full = rows.to_scipy().toarray()
    assert np.array_equal(Session(network, device="cuda", kernel="chunks")(full), expected)


@pytest.mark.parametrize("block", HALF_BLOCKS, ids=str)
def test_chunks_of_halves(block: BlockShape, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiling, "HALF_BLOCKS", (block,))
    monkeypatch.setattr(tiling, "TILE_ROWS", (block.rows,))
    network, rows = sparse_network(rng, [130, 77, 700, 33]), rows_of(rng, 70, 130, True).to_scipy().toarray()
    expected = infer(network, rows, device="cpu").dense
    session = Session(network, device="cuda", kernel="chunks_float16", precision="float16")
    for given in (rows, rows.astype(np.float16)):
        error = np.abs(np.asarray(session(given), np.float32) - expected).max()
        assert error <= ALLOWED["float16"] * np.abs(expected).max()


@pytest.mark.parametrize("kernel", ["chunks", "resident"])
def test_teams(kernel: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiling, "occupies", lambda *_: True)
    monkeypatch.setattr(resident, "TILED_WIDTH", 48)
    monkeypatch.setattr(resident, "few_rows", lambda machine: 100)
    layers = []
    for inputs, outputs in pairwise([64, 320, 170, 96]):
        masks = np.repeat(rng.random((inputs, -(-outputs // 20))) < 0.1, 20, axis=1)[:, rng.permutation(outputs)]
        weights = masks * rng.integers(1, 9, (inputs, outputs)) / 16
        layers.append(SparseLinear.from_scipy(from_dense(weights.astype(np.float32)).to_scipy(), -0.25, ReLU(4)))
    assert all(teams_of(layer) for layer in layers)
    assert_exact(Network(tuple(layers)), rows_of(rng, 400, 64, True), kernel=kernel, merging=False)


@pytest.mark.parametrize("merging", [True, False])
def test_outputs_that_stand_for_others_are_spread(merging: bool, rng: np.random.Generator) -> None:
    layer = sparse_network(rng, [40, 20]).layers[0]
    twice = SparseLinear.from_scipy(
        from_dense(np.repeat(layer.weights.to_scipy().toarray(), 3, axis=1)).to_scipy(), 0.25, ReLU(4)
    )
    network = Network((twice, sparse_network(rng, [60, 30]).layers[0], *sparse_network(rng, [30, 30, 60]).layers))
    assert_exact(network, rows_of(rng, 300, 40, False), kernel="resident", merging=merging)


@pytest.mark.parametrize("form", ["csr", "dense"])
def test_rows_are_counted(form: str, rng: np.random.Generator) -> None:
    backend = backends.backend_for("cuda")
    rows = rows_of(rng, 90, 50, True)
    full = rows.to_scipy().toarray()
    placed = backend.place(rows if form == "csr" else full.copy())
    assert np.array_equal(backend.count_nonzeros(backend.as_dense(placed)), np.count_nonzero(full, axis=1))
    assert np.array_equal(backend.fetch(backend.as_dense(placed)), full)


def test_rows_of_half_precision_are_counted(rng: np.random.Generator, cupy: Any) -> None:
    rows = (rng.normal(size=(90, 50)) * (rng.random((90, 50)) < 0.5)).astype(np.float16)
    found = backends.backend_for("cuda").count_nonzeros(cupy.asarray(rows))
    assert np.array_equal(found, np.count_nonzero(rows, axis=1))


@pytest.mark.parametrize("width", [33, 70_000])
def test_coordinates_become_compressed(width: int, rng: np.random.Generator, cupy: Any) -> None:
    from sparsenn.backends.cuda.sparse import conversion

    places = rng.choice(60 * width, 900, replace=False)
    matrix = COO.from_arrays((60, width), places // width, places % width, rng.normal(size=900).astype(np.float32))
    placed = COO(matrix.shape, *map(cupy.asarray, (matrix.rows, matrix.columns, matrix.values)))
    for kind, found in (
        (CSR, conversion.coo_to_csr(placed)),
        (CSC, conversion.compress(CSC, placed.shape, placed.columns, placed.rows, placed.values)),
    ):
        expected = kind.from_scipy(matrix.to_scipy())
        assert np.array_equal(cupy.asnumpy(found.indptr), expected.indptr)
        assert np.array_equal(cupy.asnumpy(found.indices), expected.indices)
        assert np.array_equal(cupy.asnumpy(found.values), expected.values)


def test_more_rows_than_memory_may_hold_go_in_batches(rng: np.random.Generator) -> None:
    network, rows = sparse_network(rng, [64] * 4), rows_of(rng, 130, 64, True)
    expected = infer(network, rows, device="cpu", kernel="panel")
    assert np.array_equal(infer(network, rows, device="cuda", batch_size=50).dense, expected.dense)


@pytest.mark.parametrize("widths", [(72, 64, 64, 4), (130, 192, 10), (300, 128, 128, 128, 128, 7)], ids=str)
@pytest.mark.parametrize(
    "entry", [pytest.param(entry, id=entry.name) for entry in backends.kernels("mlp", "cuda") if entry.auto]
)
def test_dense_layers(entry: Kernel, widths: tuple[int, ...], rng: np.random.Generator) -> None:
    backend = backends.backend_for("cuda")
    kinds = [ReLU()] * (len(widths) - 2) + [Identity()]
    layers = tuple(
        Linear(rng.normal(size=pair) * np.sqrt(2 / pair[0]), 0.25, kind)
        for pair, kind in zip(pairwise(widths), kinds, strict=True)
    )
    if reason := entry.why_not(backend.machine, layers):
        pytest.skip(reason)
    rows = rng.normal(size=(150, widths[0])).astype(np.float32)
    found = backend.fetch(entry.launch(backend.prepare(layers), backend.place(rows)))
    expected = rows
    for layer in layers:
        expected = outputs_of(layer, expected)
    assert np.abs(found - expected).max() <= ALLOWED[entry.precision] * np.abs(expected).max()


@pytest.mark.parametrize("filters", [16, 64])
@pytest.mark.parametrize(
    "entry", [pytest.param(entry, id=entry.name) for entry in backends.kernels("conv2d", "cuda") if entry.auto]
)
def test_convolutions(entry: Kernel, filters: int, rng: np.random.Generator) -> None:
    backend, shape = backends.backend_for("cuda"), (4, 14, 14)
    channels = 1 if entry.name == "conv_depthwise" else 4
    weights = rng.normal(size=(filters, channels, 3, 3)) / 6
    layer = Conv2d(weights, rng.normal(size=filters), ReLU(), padding=1, groups=4 // channels)
    if reason := entry.why_not(backend.machine, layer, shape):
        pytest.skip(reason)
    images = rng.normal(size=(5, *shape)).astype(np.float32)
    stack = backend.prepare([layer], shapes=[shape, layer.output_shape((1, *shape))[1:]])
    placed = backend.as_dense(backend.place(images.reshape(5, prod(shape))))
    found = backend.fetch(launch_of(entry, stack)(placed)).reshape(layer.output_shape(images.shape))
    expected = outputs_of(layer, images)
    assert np.abs(found - expected).max() <= ALLOWED[entry.precision] * np.abs(expected).max()


@pytest.mark.parametrize("precision", ["float32", "tf32", "float16"])
def test_a_network_of_images(precision: str, rng: np.random.Generator) -> None:
    """Convolutions one after the other, pooling of both kinds by both kernels, dense layers, and softmax."""
    layers = (
        Conv2d(rng.normal(size=(8, 1, 3, 3)) / 3, 0.1, ReLU(), padding=1),
        MaxPool2d(2),
        Conv2d(rng.normal(size=(8, 8, 3, 3)) / 9, 0.1, ReLU(), padding=1),
        AvgPool2d(2),
        MaxPool2d(3, 2),
        AvgPool2d(3, 3),
        Flatten(),
        Linear(rng.normal(size=(8, 10)) / 3, 0.0, Identity()),
        Softmax(),
    )
    network, images = Network(layers, image=(1, 28, 28)), rng.random((9, 1, 28, 28)).astype(np.float32)
    expected: Any = images
    for layer in layers:
        expected = outputs_of(layer, expected)
    found = Session(network, device="cuda", precision=precision)(images)
    assert np.abs(found - expected).max() <= ALLOWED[precision]


@pytest.mark.parametrize("precision", ["float32", "tf32", "float16"])
def test_filters_of_one_channel_and_sums_that_end_convolutions(precision: str, rng: np.random.Generator) -> None:
    """A tenth of the weights is left; in TF32 and half precision the convolutions are one stack."""

    def convolution(channels: int, filters: int, size: int, activation: Any = None) -> Conv2d:
        weights = rng.normal(size=(filters, channels, size, size)) * (rng.random((filters, channels, 1, 1)) < 0.1)
        return Conv2d(weights, rng.normal(size=filters), activation or ReLU(), padding=size // 2)

    nodes = [Node(convolution(3, 24, 3), (0,))]
    for _ in range(4):
        read = len(nodes)
        nodes.append(Node(Conv2d(rng.normal(size=(24, 1, 3, 3)) / 3, 0.1, ReLU(6), padding=1, groups=24), (read,)))
        nodes.append(Node(convolution(24, 24, 1, Identity()), (read + 1,)))
        nodes.append(Node(Add(ReLU()), (read, read + 2)))
    network = Network((*nodes, Node(MaxPool2d(2), (len(nodes),)), Node(Flatten(), (len(nodes) + 1,))), (3, 12, 10))
    rows = rng.normal(size=(5, network.inputs)).astype(np.float32)
    expected = Session(network, device="reference")(rows)
    found = Session(network, device="cuda", precision=precision)(rows)
    assert np.abs(found - expected).max() <= ALLOWED[precision] * np.abs(expected).max()


@pytest.mark.parametrize(
    "layer", [MaxPool2d(2), AvgPool2d(2), MaxPool2d(3, 2), AvgPool2d((1, 3), padding=(0, 1)), Softmax()], ids=str
)
def test_layers_without_weights(layer: Any, rng: np.random.Generator) -> None:
    backend, shape = backends.backend_for("cuda"), (4, 10, 12)
    images = rng.normal(size=(3, *shape)).astype(np.float32)
    images = images.reshape(3, -1) if isinstance(layer, Softmax) else images
    rows = backend.as_dense(backend.place(images.reshape(3, -1)))
    (run,) = backend.prepare([layer], shapes=[images.shape[1:]]).prepared
    found = backend.fetch(run(rows))
    expected = outputs_of(layer, images)
    np.testing.assert_allclose(found.reshape(expected.shape), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "entry", [pytest.param(entry, id=entry.name) for entry in backends.kernels("train", "cuda") if entry.auto]
)
@pytest.mark.parametrize("loss", ["cross_entropy", "mse"])
def test_training(entry: Kernel, loss: str) -> None:
    given = problem(activation=ReLU(), last=Identity(), loss=loss)
    order = np.random.default_rng(0).permutation(7)
    try:
        trainer = entry.launch(given, 0)
    except UsageError as reason:
        pytest.skip(str(reason))
    losses = trainer.epoch(order)
    host = next(entry for entry in backends.kernels("train", "cpu")).launch(given, 0)
    np.testing.assert_allclose(losses, host.epoch(order), rtol=ALLOWED[entry.precision])
    for found, expected in zip(trainer.layers(), host.layers(), strict=True):
        np.testing.assert_allclose(found.weights, expected.weights, atol=ALLOWED[entry.precision])
