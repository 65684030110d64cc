"""Numbers beyond half precision: told of, or computed right; never finite and wrong."""

import math
import re
import warnings
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from formulas import Unknown
from hypothesis import given
from hypothesis import strategies as st
from kernel_registry import add, let_auto_take
from sessions import altered
from sparse_layers import sparse_layer

from sparsenn import backends, infer
from sparsenn.backends import ConvolutionKernel, DenseKernel
from sparsenn.backends.cpu import CPUBackend
from sparsenn.backends.launching import image_kernel
from sparsenn.engine import Session, finite
from sparsenn.engine.finite import UnderflowWarning
from sparsenn.errors import NumericError, UsageError
from sparsenn.formats import CSR, from_dense
from sparsenn.layers import Add, Conv2d, Flatten, Identity, Linear, MaxPool2d, Multiply, ReLU, Sigmoid, Softmax, Tanh
from sparsenn.layers.elementwise import HALF_MAX
from sparsenn.network import Network, Node

ACTIVATIONS = [ReLU(), ReLU(clip=8.0), Sigmoid(), Tanh(), Identity()]
PIXELS = np.array([[66_000.0, 60_000.0]])
HIDING = np.array([[-1.0], [2.0]])
"""Of `PIXELS` these weights make 54,000, and of what half precision makes of those, -infinity."""


def to_half(numbers):
    with np.errstate(over="ignore"):
        return numbers.astype(np.float16).astype(np.float32)


def half_stack(layers, features):
    """Multiply dense layers as the GPU's fused kernel does: factors and hidden values are rounded, sums are float32."""
    for layer in layers:
        with np.errstate(over="ignore", invalid="ignore"):
            features = layer.activation(to_half(features) @ to_half(layer.weights) + layer.bias_vector())
    return features


def half_convolution(layer, images):
    direct = backends.kernel_named("conv2d", "conv_direct", "cpu").launch
    return direct(replace(layer, weights=to_half(layer.weights)), to_half(images))


@pytest.fixture(scope="module")
def launched():
    """Kernels for the CPU that round as the GPU's in half precision do; the numbers of layers of their launches."""
    lengths = []

    def stack(prepared, features):
        lengths.append(len(prepared.layers))
        return half_stack(prepared.layers, features)

    def convolution(layer, images):
        lengths.append(1)
        return half_convolution(layer, images)

    with pytest.MonkeyPatch.context() as patch:
        for kind, launch, name in (
            (DenseKernel, stack, "tensor_half"),
            (ConvolutionKernel, convolution, "conv_tensor_half"),
        ):
            made = kind(name=name, device="cpu", summary="rounded", launch=launch, precision="float16")
            add(patch, made)
            let_auto_take(patch, backends.automatic(made.operation, "cpu")[0], made)
        yield lengths


@pytest.fixture(autouse=True)
def _no_launches_yet(launched):
    launched.clear()


def dense(rows):
    return rows.to_scipy().toarray() if isinstance(rows, CSR) else rows


def convolving(*layers):
    return Network((*layers, Flatten()), image=(1, 1, 2))


def filters(weights):
    """A convolution whose one window is an image of 1 x 2."""
    return np.asarray(weights, np.float32).reshape(1, 1, 1, 2)


def ways_to_run(network, rows, **options):
    """Each way to run a network on rows of the host, once called."""
    options = {"device": "cpu", "precision": "float16", **options}
    sparse_rows = from_dense(rows) if np.isfinite(rows).all() else rows  # CSR holds finite numbers only
    yield lambda: dense(infer(network, sparse_rows, **options).outputs)
    yield lambda: Session(network, **options)(np.asarray(rows, np.float32))


def assert_refused(network, rows, message, **options):
    for run in ways_to_run(network, rows, **options):
        with pytest.raises(NumericError, match=message):
            run()


def test_values_within_a_stack_of_convolutions_are_scanned(monkeypatch):
    """The first convolution's -66,000 and the second one's ReLU would hide that half precision has no such number."""
    scanned = []

    def run_stack(stack, features, scan=None):
        images = features.reshape(-1, 1, 1, 1)
        for at, layer in enumerate(stack.layers):
            images = to_half(half_convolution(layer, images)) if isinstance(layer, Conv2d) else images
            if scan is not None:
                scanned.append(at)
                scan(at, images.reshape(features.shape[0], -1))
        return images.reshape(features.shape[0], -1)

    made = ConvolutionKernel(
        name="conv_stacked", device="cpu", summary="rounded", launch=half_convolution, precision="float16",
        run_stack=run_stack, fuses=lambda layer, shapes: isinstance(layer, MaxPool2d),
    )  # fmt: skip
    add(monkeypatch, made)
    let_auto_take(monkeypatch, backends.automatic("conv2d", "cpu")[0], made)
    layers = (
        Conv2d(np.full((1, 1, 1, 1), 1.0), None, Identity()),
        MaxPool2d(1),
        Conv2d(np.full((1, 1, 1, 1), -2.0), None, Identity()),
        Conv2d(np.full((1, 1, 1, 1), 1.0), None, ReLU()),
    )
    network = Network((*layers, Flatten()), (1, 1, 1))
    assert infer(network, from_dense(np.array([[3.0]])), device="cpu", precision="float16").outputs.nnz == 0
    assert scanned == [0, 1, 2, 3]
    assert_refused(network, np.array([[40_000.0]]), "layer 3: numbers went beyond 65,504")


# ---- Numbers that are too small ------------------------------------------------------------------------------------


def underflows(network, rows):
    """What is said of underflow, each way to run a network."""
    found = []
    for run in ways_to_run(network, np.asarray(rows)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run()
        found.append([str(each.message) for each in caught if each.category is UnderflowWarning])
    return found


@pytest.mark.parametrize("images", [False, True])
def test_outputs_that_lose_digits_are_reported_once(launched, images):
    small = Conv2d(filters([1e-3, 0.0]), None, Identity()) if images else Linear([[1e-3], [0.0]], None, Identity())
    network = convolving(small) if images else Network((small, Linear([[1e-3]], None, Identity())))
    for messages in underflows(network, [[0.02, 0.5]]):
        assert len(messages) == 1
        assert re.match(
            r"layers? 1.*: all outputs are below 6.1e-05, where precision float16 loses digits", messages[0]
        )
    assert underflows(network, [[2e3, 0.5]]) == [[], []]


def test_outputs_that_become_zero_are_reported_unless_they_are_zero():
    network = Network((Linear([[1e-9], [0.0]], None, Identity()),))
    assert all(len(messages) == 1 for messages in underflows(network, [[1.0, 0.5]]))
    assert underflows(network, [[0.0, 0.0]]) == [[], []]
    negative = Network((Linear([[-1.0], [0.0]], None, ReLU()),))
    assert underflows(negative, [[1.0, 0.5]]) == [[], []]


# ---- Inputs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
@pytest.mark.parametrize("images", [False, True])
def test_inputs_beyond_the_range_are_told_of_whatever_the_activation_hides(launched, activation, images):
    layer = Conv2d(filters(HIDING), None, activation) if images else Linear(HIDING, None, activation)
    network = convolving(layer) if images else Network((layer,))
    assert_refused(network, PIXELS, r"^layer 1: an input of 66,000 is beyond 65,504, .* use precision float32 or tf32")
    assert not launched
    assert dense(infer(network, from_dense(PIXELS), device="cpu").outputs) == activation(np.array([[54_000.0]]))
    if not isinstance(activation, Identity):
        wrong = half_stack((Linear(HIDING, None, activation),), PIXELS.astype(np.float32))
        assert np.isfinite(wrong).all()


@pytest.mark.parametrize(("value", "fits"), [(65_504.0, True), (-65_504.0, True), (65_505.0, False), (-7e4, False)])
def test_the_range_ends_at_its_largest_number(value, fits):
    network = Network((Linear([[0.5]], None, Identity()),))
    if not fits:
        assert_refused(network, np.array([[value]]), rf"^layer 1: an input of {abs(value):,.0f} is beyond 65,504")
        return
    for run in ways_to_run(network, np.array([[value]])):
        assert run() == value / 2


def test_inputs_of_a_later_layer_are_told_of_after_layers_of_any_kind():
    wide = sparse_layer(np.full((2, 2), 7e4))
    hiding = Linear(HIDING)
    network, rows = Network((wide, hiding)), np.array([[0.5, 0.5]])
    with pytest.raises(NumericError, match="layer 2: an input of 70,000 is beyond"):
        infer(network, from_dense(rows), device="cpu", kernel="panel", precision="float16")
    same = Linear(np.eye(2), None, Identity())
    ones = sparse_layer(np.eye(2))
    with pytest.raises(NumericError, match="layer 4: an input of 70,000 is beyond"):
        infer(Network((ones, same, wide, hiding)), from_dense(rows), device="cpu", kernel="panel", precision="float16")
    joined = Network((same, same, Node(Add(), (1, 2)), hiding))
    assert_refused(joined, np.array([[33_024.0, 30_000.0]]), "layer 4: an input of 66,048 is beyond")
    product = Network((same, same, Node(Multiply(), (1, 2)), hiding))
    assert_refused(product, np.array([[258.0, 250.0]]), "layer 4: an input of 66,564 is beyond")
    pooled = Network((MaxPool2d(1), Flatten(), hiding), image=(1, 1, 2))
    assert_refused(pooled, PIXELS, "layer 3: an input of 66,000 is beyond")
    shares = Network((Flatten(), Softmax(), hiding), image=(1, 1, 2))
    for run in ways_to_run(shares, PIXELS):
        assert run() == 0.0
    convolved = Conv2d(np.full((1, 1, 1, 1), 4.0), None, Identity())
    mixed = Network((convolved, Flatten(), hiding), image=(1, 1, 2))
    assert_refused(mixed, np.array([[16_512.0, 15_000.0]]), "layer 3: an input of 66,048 is beyond")


@pytest.mark.parametrize("layer", [Add(), Multiply()], ids=str)
def test_sums_and_products_of_halves_are_scanned(layer):
    backend = backends.backend_for("cpu")
    network = Network((Node(layer, (0, 0)), Flatten(), Linear(HIDING)), image=(1, 1, 2))
    guard = finite.BatchGuard(finite.OverflowGuard(network, backend))
    kernel = image_kernel(backend.device, layer)
    guard.after(kernel, np.float16([[65_504.0, 1.0]]), 0, 1)
    guard.after(kernel, np.float32([[np.inf, 1.0]]), 0, 1)
    with pytest.raises(NumericError, match=r"^layer 1: numbers went beyond 65,504"):
        guard.after(kernel, np.float16([[np.inf, 1.0]]), 0, 1)


def test_infinite_inputs_keep_their_rules():
    network = Network((Linear(-np.ones((2, 1)), None, ReLU()),))
    asked = {"check_finite": False}
    for run in ways_to_run(network, np.array([[np.inf, 1.0], [-3.0, 1.0]]), **asked):
        assert run().tolist() == [[0.0], [2.0]]
    assert_refused(network, np.array([[np.inf, 1.0], [7e4, 1.0]]), "layer 1: an input of 70,000 is beyond", **asked)
    for value in (-np.inf, np.nan):
        message = "layer 1: numbers went beyond 65,504, .*became infinite"
        assert_refused(network, np.array([[value, 1.0]]), message, **asked)
    assert_refused(network, np.array([[np.nan, np.nan]]), "layer 1: numbers went beyond", **asked)


@pytest.mark.parametrize("count", [0, 1])
def test_rows_without_a_number_fit(count, launched):
    network = Network((Linear(np.ones((2, 3)), None, Sigmoid()), Linear(np.ones((3, 1)), None, Sigmoid())))
    for run in ways_to_run(network, np.zeros((count, 2))):
        assert run().shape == (count, 1)
    assert launched == [2] * 2 * count


# ---- Hidden values --------------------------------------------------------------------------------------------------

OVERFLOWING = (Linear([[70.0, 35.0]]), Linear(np.array([[-1.0], [3.0]])))
"""Of 1,000 the first makes (70,000, 35,000), the second 35,000 of these."""


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
def test_hidden_values_beyond_the_range_are_told_of(launched, activation):
    network = Network((OVERFLOWING[0], replace(OVERFLOWING[1], activation=activation)))
    rows = np.array([[1000.0]])
    assert_refused(network, rows, "^layer 2: an input of 70,000 is beyond 65,504")
    assert launched == [1, 1]
    exact = dense(infer(network, from_dense(rows), device="cpu").outputs)
    assert exact == activation(np.array([[35_000.0]], np.float32))
    if not isinstance(activation, Identity):
        wrong = half_stack(tuple(network), rows.astype(np.float32))
        assert np.isfinite(wrong).all()
        assert wrong != exact or isinstance(activation, Sigmoid | Tanh)


def test_layers_that_cannot_leave_the_range_are_run_in_one_launch(launched, rng):
    widths = (9, 16, 16, 4)
    network = Network(tuple(Linear(rng.normal(size=pair) / 4, 0.1) for pair in pairwise(widths)))
    rows = rng.normal(size=(20, 9))
    for run in ways_to_run(network, rows):
        run()
    assert launched == [3, 3]


@pytest.mark.parametrize("activation", [Sigmoid(), Tanh(), ReLU(clip=30.0)], ids=str)
def test_activations_bound_hidden_values(launched, activation):
    first = Linear(np.full((4, 3), 6e4), None, activation)
    network = Network((first, Linear(np.full((3, 3), 512.0)), Linear(np.eye(3))))
    for run in ways_to_run(network, np.full((2, 4), 3e4)):
        np.testing.assert_allclose(run(), 1536 * activation(np.full((2, 3), 1e9)))
    assert launched == [3, 3]


def canceling(size):
    """Dense layers whose hidden values could be large, and are not, for rows of equal numbers."""
    opposite = np.array([[size, size], [-size, -size]])
    biased = Linear(opposite, np.array([3.0, 4.0]), Identity())
    return (biased, Linear(np.array([[2.0, 0.0], [0.0, 2.0]])), Linear(np.ones((2, 2))), Linear(np.ones((2, 1))))


def test_layers_that_might_leave_the_range_are_run_apart_and_give_the_same(launched):
    network, rows = Network(canceling(1e3)), np.array([[500.0, 500.0], [9.0, 9.0]])
    for run in ways_to_run(network, rows):
        assert run().tolist() == [[28.0], [28.0]]
    assert launched == [1, 3, 1, 3]
    launched.clear()
    for run in ways_to_run(network, rows / 256):
        assert run().tolist() == [[28.0], [28.0]]
    assert launched == [4, 4]


def test_parts_are_prepared_once_and_counted_as_layers(launched):
    prepared = []

    class Counting(CPUBackend):
        def prepare(self, layers, *more):
            prepared.extend([len(layers)] if isinstance(layers[0], Linear) else [])
            return super().prepare(layers, *more)

    network = Network(canceling(1e3))
    inputs = from_dense(np.repeat([[500.0, 500.0]], 10, axis=0))
    session = altered(network, backend=Counting(), device="cpu", precision="float16", batch_size=4)
    result = session.run(inputs)
    assert launched == [1, 3] * 3
    assert prepared == [4, 1, 3]
    assert [layer.rows for layer in result.statistics] == [10] * 4
    assert [layer.kernel for layer in result.statistics] == ["tensor_half"] * 4
    assert [layer.nonzeros for layer in result.statistics] == [None, None, None, 10]
    assert result.categories.tolist() == list(range(10))
    for _ in range(2):
        session(dense(inputs))
    assert prepared == [4, 1, 3]


def test_sparse_layers_that_are_multiplied_as_dense_ones_are_looked_at(launched, monkeypatch):
    """Estimates have all go to one kernel in half precision: the hidden values of sparse layers are bounded, too."""
    half = next(kernel for kernel in backends.automatic("mlp", "cpu") if kernel.precision == "float16")
    let_auto_take(monkeypatch, replace(half, seconds=lambda machine, layers, rows: 1e-9))
    wide = sparse_layer(np.full((2, 2), 7e4))
    kept = sparse_layer(np.full((2, 2), 0.5))
    for first, rows, message in ((kept, PIXELS, "layer 1: an input of 66,000"), (wide, [[1e3, 1e3]], "went beyond")):
        assert_refused(Network((first, Linear(HIDING))), np.array(rows), message)
    network = Network((kept, Linear(HIDING)))
    for run in ways_to_run(network, np.array([[1e3, 2e3]])):
        assert run().tolist() == [[1500.0]]
    assert launched[-1] == 2


def test_a_weight_beyond_the_range_is_left_to_the_kernel(launched):
    """It refuses the weight, and names its layer within the launch."""
    network = Network((Linear(np.full((1, 1), -9e4)), Linear(np.eye(1)), Linear(np.eye(1))))
    Session(network, device="cpu", precision="float16")(np.ones((1, 1)))
    assert launched == [3]


SIZES = st.integers(-6, 17).map(lambda power: 2.0**power)


@pytest.mark.filterwarnings("ignore::sparsenn.engine.finite.UnderflowWarning")
@given(
    st.integers(0, 2**32 - 1), st.lists(SIZES, min_size=1, max_size=4), SIZES, st.lists(st.sampled_from(ACTIVATIONS))
)
def test_an_error_or_what_every_layer_alone_gives(seed, sizes, size, activations):
    """An error exactly where an input of a layer is beyond the range; else not a bit differs."""
    rng = np.random.default_rng(seed)
    widths = rng.integers(1, 6, len(sizes) + 1)
    layers = tuple(
        Linear(
            np.clip(scale * rng.normal(size=(widths[number], widths[number + 1])), -HALF_MAX, HALF_MAX),
            scale * rng.normal(),
            activations[number] if number < len(activations) else ReLU(),
        )
        for number, scale in enumerate(sizes)
    )
    rows = (size * rng.normal(size=(4, widths[0]))).astype(np.float32)
    expected, beyond = rows, None
    for number, layer in enumerate(layers, start=1):
        if beyond is None and np.abs(expected).max() > HALF_MAX:
            beyond = number
        expected = half_stack((layer,), expected)
    for run in ways_to_run(Network(layers), rows):
        if beyond is not None:
            with pytest.raises(NumericError, match=f"^layer {beyond}: an input of"):
                run()
        else:
            assert np.array_equal(run(), expected)


# ---- Kernels that add in half precision ---------------------------------------------------------------------------


def test_no_session_runs_kernels_that_add_in_half_precision():
    every = [kernel for operation in ("mlp", "conv2d") for kernel in backends.kernels(operation, "cuda")]
    adding = {kernel.name: kernel.operation for kernel in every if kernel.adds_in_half}
    assert {"conv_half", "registers_half", "tuned_large"} <= set(adding)
    assert not any(kernel.auto for kernel in every if kernel.adds_in_half)
    for name, operation in adding.items():
        with pytest.raises(UsageError, match=f"the kernel '{name}' adds in half precision"):
            backends.permitted_kernels(operation, "cuda", name, "float16")


# ---- The bound ------------------------------------------------------------------------------------------------------


def bounds_of(layer):
    return finite.OverflowGuard(Network((layer,)), backends.backend_for("cpu")).bounds_of(0)


@given(st.integers(0, 2**32 - 1), st.floats(1e-8, 65_504.0), st.integers(-30, 15), st.sampled_from(ACTIVATIONS))
def test_no_output_exceeds_its_bound(seed, size, power, activation):
    rng = np.random.default_rng(seed)
    weights = np.clip(rng.choice([-1, 1], (40, 5)) * rng.random((40, 5)) * 2.0**power, -HALF_MAX, HALF_MAX)
    layer = Linear(weights, rng.normal(size=5), activation)
    worst = np.float32(size) * np.sign(layer.weights.T)
    assert np.abs(half_stack((layer,), worst)).max() <= bounds_of(layer).outputs(float(np.float32(size)))


def test_an_activation_that_is_not_known_has_no_bound():
    assert bounds_of(Linear(np.eye(2), None, Unknown())).outputs(1.0) == math.inf


# ---- On a GPU -------------------------------------------------------------------------------------------------------

ON_A_GPU = {"device": "cuda"}


@pytest.mark.gpu
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
def test_a_gpu_tells_of_inputs_beyond_the_range(activation):
    stack = Network((Linear(HIDING, None, activation),))
    assert_refused(stack, PIXELS, "^layer 1: an input of 66,000 is beyond", kernel="tensor_half", **ON_A_GPU)
    images = convolving(Conv2d(filters(HIDING), None, activation))
    assert_refused(images, PIXELS, "^layer 1: an input of 66,000 is beyond", kernel="conv_tensor_half", **ON_A_GPU)


@pytest.mark.gpu
def test_a_gpu_tells_of_hidden_values_beyond_the_range():
    options = {"kernel": "tensor_half", **ON_A_GPU}
    assert_refused(Network(OVERFLOWING), np.array([[1000.0]]), "^layer 2: an input of 70,000 is beyond", **options)
    for run in ways_to_run(Network(canceling(1e3)), np.array([[500.0, 500.0], [9.0, 9.0]]), **options):
        assert run().tolist() == [[28.0], [28.0]]


@pytest.mark.gpu
def test_a_gpu_passes_infinite_inputs_over():
    network, options = Network((Linear(-np.ones((2, 1))),)), {"kernel": "tensor_half", **ON_A_GPU}
    options["check_finite"] = False
    for run in ways_to_run(network, np.array([[np.inf, 1.0], [-3.0, 1.0]]), **options):
        assert run().tolist() == [[0.0], [2.0]]
    assert_refused(network, np.array([[np.inf, 1.0], [7e4, 1.0]]), "layer 1: an input of 70,000 is beyond", **options)
    assert_refused(network, np.array([[np.nan, 1.0]]), "layer 1: numbers went beyond", **options)


@pytest.mark.gpu
def test_a_weight_beyond_the_range_is_refused_by_its_number_on_a_gpu():
    network = Network((Linear(np.eye(1)), Linear(np.full((1, 1), 9e4))))
    for run in ways_to_run(network, np.ones((1, 1)), kernel="tensor_half", **ON_A_GPU):
        with pytest.raises(UsageError, match="layer 2 has a weight of 90000"):
            run()


@pytest.mark.gpu
def test_rows_on_a_gpu_are_not_looked_at(cupy):
    session = Session(Network((Linear(HIDING),)), device="cuda", precision="float16", kernel="tensor_half")
    assert cupy.asnumpy(session(cupy.asarray(PIXELS, np.float32))).tolist() == [[0.0]]
