"""Layers of images, alone and among sparse and dense ones, through the engine."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from image_strategies import convolutions, images_for
from sessions import SWITCHES, steps_of
from sparse_layers import sparse_layer as sparse

from sparsenn import backends, infer
from sparsenn.backends.machine import H200
from sparsenn.datasets import digit_inputs
from sparsenn.engine import Session, plan
from sparsenn.errors import InputError, MatrixError, ResourceError, ShapeError, UsageError
from sparsenn.formats import from_dense
from sparsenn.io import read_model
from sparsenn.layers import (
    AvgPool2d,
    Conv2d,
    Flatten,
    Identity,
    Linear,
    MaxPool2d,
    ReLU,
    Sigmoid,
    Softmax,
    SparseLinear,
)
from sparsenn.network import Network
from sparsenn.training import resize_bilinear

LIMITS = [{}, {"batch_size": 1}, {"batch_size": 7}, {"memory_limit": 6000}, {"weight_memory": 1}]
LIMITS += [{"weight_memory": 3000, "batch_size": 7}]
DEVICES = pytest.mark.parametrize("device", ["cpu", "reference", pytest.param("cuda", marks=pytest.mark.gpu)])


@pytest.fixture
def exact(rng):
    """Every kind of layer; numbers are multiples of powers of two, so that all sums are exact in float32."""

    def weights(*shape):
        return rng.integers(-2, 3, shape) / 4

    layers = (
        Conv2d(weights(4, 1, 3, 3), -0.125, ReLU(clip=8.0)),
        MaxPool2d(2),
        Conv2d(weights(6, 2, 3, 3), -0.25, ReLU(clip=8.0), stride=2, padding=1, groups=2),
        AvgPool2d(2, 1),
        Flatten(),
        sparse(weights(24, 20) * (rng.random((24, 20)) < 0.4), -0.0625, ReLU(clip=8.0)),
        Linear(weights(20, 5), None, ReLU(clip=8.0)),
    )
    images = rng.integers(0, 9, (25, 144)) / 8 * (rng.random((25, 144)) < 0.15)
    return Network(layers, image=(1, 12, 12)), from_dense(np.repeat(images, 4, axis=0))


def dense(rows):
    return rows.to_scipy().toarray()


def expected_of(network, inputs):
    """The float64 values after every layer."""
    values = [inputs.to_scipy().astype(np.float64)]
    for layer, shape in zip(network, network.shapes, strict=False):
        values.append(backends.oracle.forward(layer, values[-1], shape))
    return values[1:]


def assert_every_count(result, network, inputs):
    every = expected_of(network, inputs)
    for statistics, layer, shape, values in zip(result.statistics, network, network.shapes, every, strict=False):
        active = np.count_nonzero(np.diff(values.indptr))
        step = next(step for step in result.plan.steps if statistics.layer - 1 in step.layers)
        if step.kernel.operation in ("mlp", "conv2d") and statistics.layer != step.last:
            assert (statistics.active_rows, statistics.nonzeros, statistics.density) == (None, None, None)
        else:
            assert (statistics.active_rows, statistics.nonzeros) == (active, values.nnz)
            assert statistics.density == (values.nnz / (active * values.shape[1]) if active else 0.0)
        if not isinstance(layer, SparseLinear | Linear):
            assert statistics.performed_edges == layer.multiply_adds((statistics.rows, *shape))
            assert statistics.distinct_rows is None
    assert np.array_equal(dense(result.outputs), every[-1].toarray())
    assert np.array_equal(result.categories, np.flatnonzero(np.diff(every[-1].indptr)))


@DEVICES
@pytest.mark.parametrize("batch_size", [None, 30])
@pytest.mark.parametrize("switches", SWITCHES, ids=str)
def test_where_sums_are_exact_every_bit_and_every_count_agrees(exact, device, batch_size, switches):
    network, inputs = exact
    result = infer(network, inputs, device=device, batch_size=batch_size, **switches)
    assert 0 < result.categories.size < inputs.shape[0]
    assert_every_count(result, network, inputs)
    assert result.edges == network.multiply_adds


@st.composite
def problems(draw):
    """A convolution, often with a pooling before it, then a row of other layers, ending in shares of one or not."""
    convolution, image = draw(convolutions())
    layers = [convolution]
    if draw(st.booleans()):
        layers.append(MaxPool2d(1))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    width = Network(tuple(layers), image=image).outputs
    layers.append(Flatten())
    for kind in draw(st.lists(st.sampled_from(["sparse", "dense", "softmax"]), max_size=3)):
        if kind == "softmax":
            layers.append(Softmax())
            continue
        outputs = draw(st.integers(1, 20))
        weights = rng.normal(size=(width, outputs)) / width**0.5 * (rng.random((width, outputs)) < 0.5)
        layers.append((sparse if kind == "sparse" else Linear)(weights, draw(st.sampled_from([None, -0.25, 0.25]))))
        width = outputs
    return Network(tuple(layers), image=image), from_dense(draw(images_for((int(np.prod(image)),), 12)))


def assert_near(result, network, inputs):
    found, expected = dense(result.outputs), expected_of(network, inputs)[-1].toarray()
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)
    assert np.array_equal(result.categories, np.flatnonzero(np.diff(result.outputs.indptr)))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@given(problem=problems(), switches=st.sampled_from(SWITCHES), limits=st.sampled_from(LIMITS))
def test_any_mixture_equals_the_reference(device, problem, switches, limits):
    network, inputs = problem
    limits = limits | ({"memory_limit": 12 * network.widest + 64} if "memory_limit" in limits else {})
    assert_near(infer(network, inputs, device=device, **switches, **limits), network, inputs)


@pytest.mark.parametrize("kernel", [entry.name for entry in backends.kernels("conv2d", "cpu")])
def test_every_kernel_of_convolutions_can_be_asked_for(kernel, rng):
    network = Network((Conv2d(rng.normal(size=(3, 1, 3, 3))), Flatten(), Linear(np.ones((27, 2)))), image=(1, 5, 5))
    inputs = from_dense(rng.random((9, 25)))
    result = infer(network, inputs, device="cpu", kernel=kernel)
    flatten = "conv_direct" if kernel == "conv_direct" else "flatten"
    assert [layer.kernel for layer in result.statistics] == [kernel, flatten, "register_tiled"]
    assert_near(result, network, inputs)


def test_streamed_weights_give_the_same_bits(exact):
    network, inputs = exact
    session = Session(network, device="cpu", batch_size=30, weight_memory=1)
    chosen = session.plan(inputs)
    assert chosen.streams
    assert steps_of(chosen) == tuple((number, number + 1) for number in range(7))
    for _ in range(2):
        assert_every_count(session.run(inputs), network, inputs)


def test_each_layer_of_images_is_a_step_unless_a_kernel_fuses_them(exact):
    network, inputs = exact
    assert steps_of(plan(network, inputs, device="cpu"))[0] == (0, 5)
    alone = plan(network.prefix(5), inputs, device="cpu", kernel="conv_sequential")
    assert steps_of(alone) == tuple((number, number + 1) for number in range(5))


def test_layers_that_no_kernel_fuses_are_steps_of_their_own(rng):
    layers = (MaxPool2d(2), Conv2d(rng.normal(size=(2, 1, 2, 2))), Softmax(), AvgPool2d(2), Flatten())
    network, inputs = Network(layers, image=(1, 9, 9)), from_dense(rng.random((5, 81)))
    result = infer(network, inputs, device="cpu", kernel="conv_direct")
    assert steps_of(result.plan) == ((0, 2), (2, 3), (3, 4), (4, 5))
    assert_near(result, network, inputs)


def test_images_of_zeros_are_no_categories(rng):
    network = Network((Conv2d(-np.ones((2, 1, 3, 3)), None, ReLU()), MaxPool2d(2), Flatten()), image=(1, 8, 8))
    inputs = from_dense(np.concatenate([np.zeros((3, 64)), rng.random((2, 64))]))
    dropped, kept = (infer(network, inputs, device="cpu", compaction=flag) for flag in (True, False))
    assert [layer.kernel for layer in dropped.statistics] == 3 * ["conv_direct"]
    for result in (dropped, kept):
        assert [layer.rows for layer in result.statistics] == [5, 5, 5]
        assert result.categories.size == 0
        assert result.outputs.shape == (5, 18)


@pytest.mark.parametrize(
    ("reviving", "value"),
    [
        (Softmax(), 1 / 16),
        (Conv2d(np.ones((1, 1, 1, 1)), 0.5, ReLU()), 0.5),
        (Conv2d(np.ones((1, 1, 1, 1)), None, Sigmoid()), 0.5),
    ],
    ids=["softmax", "bias", "sigmoid"],
)
def test_images_of_zeros_that_a_later_layer_revives_are_kept(reviving, value, rng):
    dying = Conv2d(-np.ones((1, 1, 1, 1)), None, ReLU())
    network = Network((dying, reviving, MaxPool2d(1)), image=(1, 4, 4))
    inputs = from_dense(rng.random((5, 16)))
    result = infer(network, inputs, device="cpu")
    assert result.plan.droppable_from == 1
    assert [layer.rows for layer in result.statistics] == [5, 5, 5]
    np.testing.assert_allclose(dense(result.outputs), value)
    assert result.categories.tolist() == [0, 1, 2, 3, 4]


def test_the_widest_image_counts_for_the_memory(rng):
    network = Network((Conv2d(rng.random((10, 1, 1, 1))), MaxPool2d(10)), image=(1, 10, 10))
    inputs = from_dense(rng.random((20, 100)))
    with pytest.raises(ResourceError, match=r"one row, .* 12,064"):
        plan(network, inputs, device="cpu", memory_limit=12_000)
    assert plan(network, inputs, device="cpu", memory_limit=50_000).batch_size == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kernel": "panel"}, "unknown cpu kernel for conv2d 'panel'.*known: conv_direct"),
        ({"kernel": "register_tiled"}, "unknown cpu kernel for conv2d 'register_tiled'"),
        ({"precision": "half"}, "unknown precision 'half'"),
        ({"precision": "tf32"}, "convolutions are not multiplied in tf32 on cpu; known: float32"),
        ({"precision": "float16", "device": "reference"}, "convolutions are not multiplied in float16 on reference"),
        (
            {"precision": "float16", "kernel": "conv_direct"},
            "the kernel 'conv_direct' multiplies in float32, not in float16",
        ),
    ],
    ids=str,
)
def test_what_convolutions_cannot_have_is_refused(options, message):
    network = Network((Conv2d(np.ones((1, 1, 1, 1))), Flatten(), Linear(np.eye(4))), image=(1, 2, 2))
    for made in (plan, Session):
        rows = (from_dense(np.eye(4)),) if made is plan else ()
        with pytest.raises(UsageError, match=message):
            made(network, *rows, **{"device": "cpu", **options})


def test_what_networks_without_products_cannot_have_is_refused():
    network, inputs = Network((MaxPool2d(2), Softmax()), image=(1, 2, 2)), from_dense(np.eye(4))
    with pytest.raises(UsageError, match="leave out kernel 'conv_direct'"):
        plan(network, inputs, device="cpu", kernel="conv_direct")
    with pytest.raises(UsageError, match="leave out precision tf32"):
        plan(network, inputs, device="cpu", precision="tf32")
    assert np.array_equal(dense(infer(network, inputs, device="cpu").outputs), np.ones((4, 1)))


@pytest.fixture
def pruned_example(repository):
    """The committed network whose fully connected layers, 6 and 7, are sparse."""
    path = repository / "datasets" / "lenet86-pruned.h5"
    if not path.is_file():
        pytest.skip(f"the model is not here: no file {path}")
    return read_model(path).network


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["tf32", "float16"])
def test_the_pruned_example_keeps_its_classes_in_lower_precisions(pruned_example, precision):
    digits = dense(digit_inputs(784, images=300)).reshape(-1, 28, 28).transpose(0, 2, 1)
    inputs = from_dense(resize_bilinear(digits, 86, 86).reshape(len(digits), -1))
    scores = pruned_example.prefix(7)
    options = {"device": "cuda", "kernel": "chunks"}
    exact, result = (infer(scores, inputs, precision=asked, **options) for asked in ("float32", precision))
    assert exact.plan.precisions == ("float32", None, "float32", None, None, "float32", "float32")
    assert result.plan.precisions == (precision, None, precision, None, None, "float32", "float32")
    assert str(result.plan).endswith(f" Layers multiplied in {precision}: 1, 3; in float32: 6–7.")
    expected, found = dense(exact.outputs), dense(result.outputs)
    error = np.abs(found - expected).max()
    assert 0 < error < 1e-2 * np.abs(expected).max()
    second, first = np.sort(expected, axis=1)[:, -2:].T
    sure = first - second > 2 * error
    assert sure.mean() > 0.9
    assert np.array_equal(found.argmax(axis=1)[sure], expected.argmax(axis=1)[sure])


@DEVICES
def test_a_session_takes_images_and_rows(device, rng):
    layers = (
        Conv2d(rng.normal(size=(4, 2, 3, 3)), 0.1),
        MaxPool2d(2),
        Flatten(),
        Linear(rng.normal(size=(36, 5)), 0.1),
        Linear(rng.normal(size=(5, 3)), None, Identity()),
        Softmax(),
    )
    network = Network(layers, image=(2, 8, 8))
    session = Session(network, device=device)
    images = rng.normal(size=(11, 2, 8, 8)).astype(np.float32)
    rows = images.reshape(11, 128)
    expected = expected_of(network, from_dense(rows))[-1].toarray()
    for given_rows in (images, rows, rows.tolist(), images.astype(np.float64)):
        found = session(given_rows)
        assert isinstance(found, np.ndarray)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert session(rows[:0]).shape == session(images[:0]).shape == (0, 3)
    with pytest.raises(InputError, match=r"input 1, column 1: .* nan"):
        session(np.full((1, 128), np.nan))
    with pytest.raises(ShapeError, match="127 columns; layer 1 takes 128"):
        session(np.ones((1, 127)))
    with pytest.raises(MatrixError, match=r"the network takes \(rows, 128\) or \(rows, 2, 8, 8\)"):
        session(np.ones((1, 2, 4, 16)))
    assert str(session).startswith("2 × 8 × 8 - 4 × 6 × 6 - 4 × 3 × 3 - 36 - 5 - 3 - 3 on ")


@pytest.mark.gpu
def test_images_on_a_gpu_stay_there(rng, cupy):
    network = Network((Conv2d(rng.normal(size=(4, 2, 3, 3))), AvgPool2d(2), Softmax()), image=(2, 8, 8))
    session = Session(network, device="cuda")
    images = rng.normal(size=(5, 2, 8, 8)).astype(np.float32)
    found = session(cupy.asarray(images))
    assert isinstance(found, cupy.ndarray)
    assert np.array_equal(cupy.asnumpy(found), session(images))


def test_a_plan_for_a_gpu_can_be_made_without_one(exact):
    chosen = plan(*exact, machine=H200)
    found = [kernel for kernel in chosen.kernels if kernel.operation == "conv2d"]
    assert [kernel.device for kernel in found] == ["cuda", "cuda"]
    assert all(kernel.auto for kernel in found)
    assert "cannot, because stride" in str(chosen)


@pytest.mark.parametrize("precision", ["tf32", "float16"])
def test_a_kernel_that_is_named_keeps_sparse_layers_in_float32_on_a_gpu(pruned_example, precision):
    inputs = from_dense(np.ones((2, pruned_example.inputs)))
    named = plan(pruned_example, inputs, machine=H200, precision=precision, kernel="chunks")
    assert named.precisions == (precision, None, precision, None, None, "float32", "float32", None)
    assert [kernel.name for kernel in named.kernels[5:7]] == ["chunks", "chunks"]
    assert named.to_dict()["precisions"] == list(named.precisions)
    free = plan(pruned_example, inputs, machine=H200, precision=precision)
    assert free.precisions[:5] == named.precisions[:5]
    assert set(free.precisions[5:7]) <= {precision, "float32"}
