"""One suite for every backend: convolutions, and the other layers of images, on awkward shapes.

Of the kernels of conv2d for a GPU, each of which is compiled anew for every shape, those run here that `auto`
may take; the others have tests of their own.
"""

from functools import partial
from math import fsum, prod

import numpy as np
import pytest
from convolutions import ALLOWED, absolute_sums, assert_near_conv2d, reference_conv2d
from hypothesis import given, settings
from hypothesis import strategies as st
from image_strategies import convolutions, images_for, weightless_layers
from oracle import activated, outputs_of

from sparsenn import backends
from sparsenn.backends import image_kernel, launch_of
from sparsenn.errors import ShapeError
from sparsenn.formats import from_dense
from sparsenn.layers import AvgPool2d, Conv2d, Flatten, Identity, LayerNorm, MaxPool2d, ReLU, Sigmoid, Softmax, Tanh

DEVICES = {"reference": (), "cpu": (), "cuda": (pytest.mark.gpu,)}
KERNELS = [
    pytest.param(entry, marks=DEVICES[entry.device], id=f"{entry.device}-{entry.name}")
    for entry in backends.kernels("conv2d")
    if entry.device != "cuda" or entry.auto
]

every_kernel = pytest.mark.parametrize("entry", KERNELS)
devices = pytest.mark.parametrize("device", [pytest.param(device, marks=marks) for device, marks in DEVICES.items()])


def run(entry, layer, images):
    """Convolve by a kernel, or skip the test where it cannot."""
    backend = backends.backend_for(entry.device)
    shape = images.shape[1:]
    if reason := entry.why_not(backend.machine, layer, shape):
        pytest.skip(reason)
    stack = backend.prepare([layer], shapes=[shape, layer.output_shape((1, *shape))[1:]])
    rows = backend.as_dense(backend.place(images.reshape(images.shape[0], prod(shape))))
    outputs = backend.fetch(launch_of(entry, stack)(rows))
    return outputs.reshape(layer.output_shape(images.shape))


def assert_near(entry, layer, images):
    found = run(entry, layer, images)
    assert found.shape == layer.output_shape(images.shape)
    if not images.size:
        return
    _, stride, padding, dilation = layer.sliding_window
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": layer.groups}
    given_layer = layer.weights, layer.bias
    if entry.precision in ALLOWED:  # in parts of what sums' terms add up to without their signs: sums may be zero
        expected = reference_conv2d(images, *given_layer, partial(activated, layer.activation), **options)
        size = absolute_sums(images, *given_layer, **options).max()
        assert (np.abs(found - expected) <= ALLOWED[entry.precision] * size).all()
    else:
        assert_near_conv2d(found, images, *given_layer, partial(activated, layer.activation), **options)


@st.composite
def problems(draw, layers):
    layer, shape = draw(layers)
    return layer, draw(images_for(shape))


@every_kernel
@settings(max_examples=12)
@given(problem=problems(convolutions()))
def test_every_kernel_computes_any_convolution(entry, problem):
    layer, images = problem
    machine = backends.backend_for(entry.device).machine
    if entry.why_not(machine, layer, images.shape[1:]) is None:
        assert_near(entry, layer, images)


@every_kernel
@pytest.mark.parametrize(
    ("count", "shape", "weights", "options"),
    [
        (3, (1, 1, 1), (1, 1, 1, 1), {}),
        (2, (1, 1, 1), (3, 1, 3, 3), {"padding": 1}),
        (5, (1, 28, 28), (5, 1, 5, 5), {}),
        (2, (4, 40, 40), (16, 4, 7, 7), {}),
        (2, (16, 9, 9), (16, 16, 3, 3), {"padding": 1}),
        (1, (64, 14, 14), (64, 64, 3, 3), {"padding": 1}),
        (2, (3, 32, 32), (8, 3, 3, 3), {"stride": 2, "padding": 1}),
        (2, (8, 12, 12), (8, 1, 3, 3), {"groups": 8, "padding": 1}),
        (2, (6, 9, 11), (4, 3, 1, 1), {"groups": 2}),
        (1, (2, 5, 700), (5, 2, 3, 3), {"padding": (1, 0)}),
        (1, (2, 700, 3), (5, 2, 3, 3), {"stride": (3, 1)}),
        (600, (1, 3, 3), (2, 1, 2, 2), {}),
        (2, (3, 7, 7), (4, 3, 7, 7), {}),
    ],
    ids=str,
)
def test_shapes_that_networks_have(entry, count, shape, weights, options, rng):
    images = rng.normal(size=(count, *shape)).astype(np.float32)
    layer = Conv2d(rng.normal(size=weights), rng.normal(size=weights[0]), ReLU(), **options)
    assert_near(entry, layer, images)


@every_kernel
@pytest.mark.parametrize("activation", [ReLU(), ReLU(clip=0.5), Sigmoid(), Tanh(), Identity()], ids=str)
@pytest.mark.parametrize("bias", [None, -0.25, "vector"])
def test_every_activation_and_bias(entry, activation, bias, rng):
    bias = rng.normal(size=6) if bias == "vector" else bias
    layer = Conv2d(rng.normal(size=(6, 2, 3, 3)), bias, activation)
    assert_near(entry, layer, rng.normal(size=(3, 2, 8, 8)).astype(np.float32))


@every_kernel
def test_zeros_give_the_bias_alone(entry):
    layer = Conv2d(np.ones((2, 1, 3, 3)), [0.5, -0.5], ReLU(), padding=1)
    found = run(entry, layer, np.zeros((3, 1, 8, 8), np.float32))
    assert (found[:, 0] == 0.5).all()
    assert (found[:, 1] == 0.0).all()


@every_kernel
def test_a_number_that_is_not_finite_is_not_lost(entry, rng):
    if entry.precision != "float32":
        pytest.skip("float32's rule alone")
    images = rng.normal(size=(2, 2, 8, 8)).astype(np.float32)
    images[1, 0, 4, 4] = np.nan
    found = run(entry, Conv2d(rng.normal(size=(5, 2, 3, 3))), images)
    assert np.isnan(found[1, :, 2:5, 2:5]).all()
    assert np.isfinite(found[0]).all()


@every_kernel
def test_filters_larger_than_the_image_are_refused(entry):
    layer = Conv2d(np.ones((1, 1, 4, 4)))
    with pytest.raises(ShapeError, match=r"4 x 4 pixels .* 3 x 3"):
        layer.output_shape((1, 1, 3, 3))
    if entry.device != "cuda":
        with pytest.raises(ShapeError, match="larger than an image"):
            entry.launch(layer, np.zeros((1, 1, 3, 3), np.float32))


@every_kernel
def test_images_stay_as_they_were(entry, rng):
    backend = backends.backend_for(entry.device)
    layer = Conv2d(rng.normal(size=(4, 4, 3, 3)), 0.1, ReLU(), padding=1)
    if entry.why_not(backend.machine, layer, (4, 8, 8)):
        pytest.skip("another shape is needed")
    images = rng.normal(size=(2, 256)).astype(np.float32)
    stack = backend.prepare([layer], shapes=[(4, 8, 8), (4, 8, 8)])
    rows = backend.as_dense(backend.place(images.copy()))
    first = np.array(backend.fetch(launch_of(entry, stack)(rows)))
    assert np.array_equal(backend.fetch(rows), images)
    assert np.array_equal(backend.fetch(launch_of(entry, stack)(rows)), first)


def run_weightless(device, layer, images):
    backend = backends.backend_for(device)
    rows = backend.as_dense(backend.place(images.reshape(images.shape[0], prod(images.shape[1:]))))
    (run,) = backend.prepare([layer], shapes=[images.shape[1:]]).prepared
    outputs = backend.fetch(run(rows))
    return outputs.reshape(layer.output_shape(images.shape))


def allowed(device, relative):
    """Return what outputs may be off by; the reference computes in float64."""
    return {"rtol": 1e-12, "atol": 1e-12} if device == "reference" else {"rtol": relative, "atol": 1e-6}


@devices
@given(problem=problems(weightless_layers()))
def test_layers_without_weights(device, problem):
    layer, images = problem
    found, expected = run_weightless(device, layer, images), outputs_of(layer, images)
    if isinstance(layer, MaxPool2d | Flatten):
        assert np.array_equal(found, expected)
    else:
        np.testing.assert_allclose(found, expected, **allowed(device, 1e-5))


@devices
@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (MaxPool2d(2), (4, 34, 34)),
        (MaxPool2d(3, 2, 1), (3, 112, 20)),
        (MaxPool2d((1, 9), (3, 1), (0, 4)), (1, 40, 9)),
        (AvgPool2d(7), (40, 7, 7)),
        (AvgPool2d(2, 1), (2, 50, 50)),
        (AvgPool2d((1, 4), 1, (0, 1)), (2, 4, 5)),
        (Softmax(), (1,)),
        (Softmax(), (10,)),
        (Softmax(), (513,)),
        (Softmax(), (20_000,)),
        (Softmax(), (3, 30, 30)),
        (LayerNorm(np.ones(1), np.zeros(1), positions=7), (7,)),
        (LayerNorm(np.linspace(-1, 1, 768), np.ones(768), positions=11), (11, 768)),
        (LayerNorm(np.ones(20_000), np.zeros(20_000)), (20_000,)),
        (LayerNorm(np.ones(300), np.zeros(300), positions=9), (3, 30, 30)),
    ],
    ids=str,
)
@pytest.mark.parametrize("count", [1, 33])
def test_layers_without_weights_of_usual_sizes(device, layer, shape, count, rng):
    images = rng.normal(scale=3, size=(count, *shape)).astype(np.float32)
    found, expected = run_weightless(device, layer, images), outputs_of(layer, images)
    np.testing.assert_allclose(found, expected, **allowed(device, 2e-5))


@devices
@pytest.mark.parametrize(("side", "value"), [(2, 3e38), (256, 0.1), (512, 0.1), (512, -3e38), (2000, 0.1)])
def test_means_of_many_pixels_keep_their_digits(device, side, value):
    images = np.full((1, 1, side, side), value, np.float32)
    found = run_weightless(device, AvgPool2d(side), images)
    np.testing.assert_allclose(found, images[:, :, :1, :1], rtol=2.0**-23)


@devices
def test_means_are_those_of_exact_sums(device, rng):
    """Against `math.fsum`, which rounds once: numbers of any size and sign."""
    images = (rng.normal(size=(3, 2, 60, 40)) * 2.0 ** rng.integers(-20, 20, (3, 2, 60, 40))).astype(np.float32)
    found = run_weightless(device, AvgPool2d((60, 40)), images)
    expected = [[fsum(plane.ravel().tolist()) / 2400 for plane in image] for image in images]
    np.testing.assert_allclose(found[:, :, 0, 0], expected, rtol=2.0**-23)


@devices
def test_numbers_far_from_zero_are_normalised_exactly(device, rng):
    rows = (1e4 + rng.normal(size=(5, 3000))).astype(np.float32)
    layer = LayerNorm(np.ones(1000), np.zeros(1000), positions=3)
    np.testing.assert_allclose(run_weightless(device, layer, rows), outputs_of(layer, rows), rtol=0, atol=1e-6)


@devices
def test_equal_numbers_become_the_shift(device):
    layer = LayerNorm(np.ones(33), np.linspace(0, 1, 33))
    found = run_weightless(device, layer, np.full((4, 33), 0.1, np.float32))
    np.testing.assert_allclose(found, np.broadcast_to(layer.shift, (4, 33)), rtol=0, atol=1e-6)


@devices
def test_shares_of_many_numbers_keep_their_digits(device):
    found = run_weightless(device, Softmax(), np.full((2, 3_000_000), 0.3, np.float32))
    np.testing.assert_allclose(found, 1 / 3_000_000, rtol=2.0**-23)


@devices
def test_numbers_that_are_not_finite_behave_as_in_scipy(device):
    images = np.arange(32, dtype=np.float32).reshape(2, 1, 4, 4)
    images[0, 0, 1, 1], images[1, 0, 0, 0], images[1, 0, 3, 3] = np.nan, -np.inf, np.inf
    for layer in (MaxPool2d(2), MaxPool2d(3, 1, 1), AvgPool2d(2), Softmax(), LayerNorm(np.ones(16), np.ones(16))):
        with np.errstate(invalid="ignore"):
            expected = outputs_of(layer, images)
        assert np.isnan(expected).any()
        np.testing.assert_array_equal(run_weightless(device, layer, images), expected.astype(np.float32))


@devices
def test_large_numbers_do_not_overflow_in_softmax(device):
    rows = np.array([[1e4, 1e4, -1e4], [-1e4, -1e4, -1e4], [3e38, 0, -3e38]], np.float32)
    found = run_weightless(device, Softmax(), rows)
    np.testing.assert_allclose(found, [[0.5, 0.5, 0], [1 / 3, 1 / 3, 1 / 3], [1, 0, 0]], rtol=1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "layer",
    [MaxPool2d(2), AvgPool2d(3, 2, 1), Softmax(), LayerNorm(np.ones(30), np.zeros(30), positions=12), Flatten()],
    ids=lambda layer: layer.name,
)
def test_half_precision_stays_half_precision(layer, rng, cupy):
    backend = backends.backend_for("cuda")
    images = rng.normal(size=(9, 3, 12, 10)).astype(np.float16)
    (run,) = backend.prepare([layer], shapes=[images.shape[1:]]).prepared
    found = run(cupy.asarray(images.reshape(9, -1)))
    assert found.dtype == np.float16
    expected = outputs_of(layer, images).reshape(9, -1)
    np.testing.assert_allclose(cupy.asnumpy(found), expected, rtol=2e-3, atol=1e-5)


STACK = (Conv2d(np.eye(4).reshape(2, 2, 2, 2), -0.5, ReLU()), MaxPool2d(2), Softmax())
SHAPES = ((2, 5, 5), (2, 4, 4), (2, 2, 2), (2, 2, 2))


@devices
@pytest.mark.parametrize("sparse", [True, False])
def test_a_stack_is_run_layer_by_layer(device, sparse, rng):
    backend = backends.backend_for(device)
    images = rng.integers(0, 3, (6, *SHAPES[0])).astype(np.float32)
    images[[1, 4]] = 0
    rows = images.reshape(6, -1)
    convolution = backends.kernel_named(
        "conv2d", {"cuda": "conv_baseline", "cpu": "conv_sequential"}.get(device, device), device
    )
    for number, layer in enumerate(STACK):
        kernel = convolution if isinstance(layer, Conv2d) else image_kernel(device, layer)
        stack = backend.prepare([layer], shapes=SHAPES[number : number + 2])
        features = backend.as_dense(backend.place(from_dense(rows) if sparse else rows.copy()))
        found = backend.fetch(launch_of(kernel, stack)(features))
        expected = outputs_of(layer, rows.reshape(-1, *SHAPES[number])).reshape(6, -1)
        np.testing.assert_allclose(found, expected, rtol=1e-6)
        rows = expected.astype(np.float32)


@pytest.mark.parametrize("device", DEVICES)
def test_layers_without_kernels_are_named_without_their_device(device):
    kernel = image_kernel(device, MaxPool2d(2))
    assert (kernel.operation, kernel.name, kernel.device) == ("images", "max_pool2d", device)


@devices
@pytest.mark.parametrize("shape", [(0, 5), (1, 5), (300, 3), (3, 4096), (2, 100_003), (70_000, 1)])
def test_nonzeros_and_what_is_not_finite_are_found(device, shape, rng):
    backend = backends.backend_for(device)
    matrix = (rng.normal(size=shape) * (rng.random(shape) < 0.5)).astype(np.float32)
    placed = backend.as_dense(backend.place(matrix))
    assert np.array_equal(backend.count_nonzeros(placed), np.count_nonzero(matrix, axis=1))
    largest = np.abs(matrix).max(initial=0.0)
    assert backend.largest_number(placed) == (largest, True)
    assert backend.largest_number(backend.place(from_dense(matrix))) == (largest, True)
    if matrix.size:
        for spoilt in (np.nan, np.inf, -np.inf):
            matrix[-1, -1] = spoilt
            largest = np.abs(matrix[np.isfinite(matrix)]).max(initial=0.0)
            assert backend.largest_number(backend.as_dense(backend.place(matrix))) == (largest, False)


@devices
def test_weights_of_convolutions_are_weighed(device):
    backend = backends.backend_for(device)
    layer = Conv2d(np.ones((8, 3, 3, 3)))
    assert backend.prepared_bytes(layer) >= layer.weights.nbytes
    assert [backend.prepared_bytes(other) for other in (MaxPool2d(2), Flatten(), Softmax())] == [0, 0, 0]
