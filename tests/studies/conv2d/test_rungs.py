"""The rungs of conv2d's first two stories on a GPU against a float64 convolution; and which convolutions they take."""

import numpy as np
import pytest
from convolutions import assert_near_conv2d, reference_conv2d

from sparsenn.backends.cuda.conv import Geometry, upload_conv
from sparsenn.backends.cuda.runtime.device import cupy
from sparsenn.backends.machine import H200, MACHINES
from sparsenn.layers import Conv2d, Identity, ReLU, Sigmoid, Tanh
from sparsenn.studies.conv2d import LADDER
from sparsenn.studies.conv2d.products import float32 as products
from sparsenn.studies.gemm.tiling import TILINGS, Cut

ORDER = [
    *("conv_baseline", "conv_constant_filters", "conv_unrolled", "conv_tiled_shared", "conv_half"),
    *("conv_per_shape", "conv_implicit_gemm", "conv_swept", "conv_streamed", "conv_register_tiled"),
]
ENTRIES = LADDER.rungs["cuda"][: len(ORDER)]
NAMES = ("conv_naive", "conv_coalesced", "conv_block_tiled", "conv_shared_tiled", "conv_vectorized", "conv_library")
PRODUCTS = [rung for rung in LADDER.rungs["cuda"] if rung.name in NAMES]

entries = pytest.mark.parametrize("entry", [*ENTRIES, *PRODUCTS], ids=lambda entry: entry.name)
machines = pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)


@machines
def test_both_layers_fit_every_rung_and_one_of_all_kinds_fits_the_general_ones(machine):
    for image, filters in (((1, 86, 86), 4), ((4, 40, 40), 16)):
        layer = Conv2d(np.ones((filters, image[0], 7, 7)))
        assert [entry.name for entry in ENTRIES if entry.why_not(machine, layer, image) is not None] == []
    general = Conv2d(np.ones((10, 3, 3, 4)), stride=(2, 1), padding=(1, 2), dilation=(1, 2), groups=2)
    taken = [entry.name for entry in ENTRIES if entry.why_not(machine, general, (6, 9, 11)) is None]
    assert taken == [*ORDER[:3], "conv_streamed"]


def test_groups_and_sizes_beyond_counting_are_refused(rng):
    layer = Conv2d(rng.normal(size=(4, 2, 3, 3)), None, ReLU(), groups=2)
    huge = Geometry(1, 65_536, 65_536, 1, (1, 1))
    for entry in PRODUCTS:
        assert "2 groups" in entry.why_not(H200, layer, (4, 9, 9))
        assert entry.why_not(H200, Conv2d(layer.weights, None, ReLU(), stride=2, dilation=2), (2, 9, 9)) is None
    assert "an image would have 4,294,967,296 numbers" in products.fits(huge)


AWKWARD = [
    ((1, 86, 86), (4, 7, 7), 2, {}),
    ((4, 40, 40), (16, 7, 7), 5, {}),
    ((1, 1, 1), (1, 1, 1), 3, {}),
    ((3, 1, 1), (5, 1, 1), 300, {}),
    ((1, 7, 7), (1, 7, 7), 33, {}),
    ((3, 9, 11), (5, 3, 4), 7, {"padding": (1, 2)}),
    ((2, 13, 6), (17, 2, 5), 4, {"padding": (0, 3)}),
    ((5, 6, 9), (3, 4, 2), 1, {"padding": 2}),
    ((1, 33, 65), (2, 1, 7), 3, {}),
    ((40, 14, 14), (20, 3, 3), 3, {"padding": 1}),
    ((64, 30, 37), (64, 3, 3), 2, {"padding": 1}),
    ((300, 5, 5), (70, 3, 3), 9, {"padding": 1}),
    ((6, 9, 11), (10, 3, 4), 4, {"stride": (2, 1), "padding": (1, 2), "dilation": (1, 2), "groups": 2}),
    ((8, 12, 10), (8, 3, 3), 3, {"stride": 3, "padding": 2, "groups": 8}),
    ((2, 20, 20), (3, 5, 5), 2, {"stride": 2, "dilation": (3, 1)}),
    ((1, 12, 12), (3, 7, 7), 0, {}),
    ((8, 14, 14), (70, 3, 3), 2, {"padding": 1}),
    ((16, 11, 7), (33, 3, 2), 5, {"stride": (2, 1), "padding": (1, 0), "dilation": (1, 2)}),
    ((24, 6, 5), (130, 3, 3), 2, {"padding": 4, "stride": 3}),
    ((2, 4, 4), (3, 4, 4), 300, {}),
    ((5, 3, 40), (4, 1, 40), 3, {}),
]
ACTIVATIONS = [ReLU(), ReLU(0.5), Sigmoid(), Tanh(), Identity()]


def random_layer(rng, image, filters, activation=None, **steps):
    count, height, width = filters
    shape = count, image[0] // steps.get("groups", 1), height, width
    weights = rng.normal(size=shape) / np.sqrt(np.prod(shape[1:]))
    return Conv2d(weights, rng.normal(size=count), activation or ReLU(), **steps)


def run(entry, layer, images):
    uploaded = upload_conv(0, layer, images.shape[1:])
    outputs = entry.launch(uploaded, cupy().asarray(images))
    assert outputs.dtype == images.dtype
    assert outputs.flags.c_contiguous
    return cupy().asnumpy(outputs)


def assert_right(found, layer, images, precision, **steps):
    assert_near_conv2d(found, images, layer.weights, layer.bias_vector(), layer.activation, precision, **steps)


def cases():
    for entry in (*ENTRIES, *PRODUCTS):
        for image, filters, count, steps in AWKWARD:
            layer = random_layer(np.random.default_rng(0), image, filters, **steps)
            if entry.why_not(H200, layer, image) is None:
                yield pytest.param(entry, image, filters, count, steps, id=f"{entry.name}-{image}-{filters}-{count}")


@pytest.mark.gpu
@pytest.mark.parametrize(("entry", "image", "filters", "count", "steps"), list(cases()))
def test_rung_is_near_the_exact_answer(entry, image, filters, count, steps, rng):
    layer = random_layer(rng, image, filters, **steps)
    images = rng.normal(size=(count, *image)).astype(np.float32)
    assert_right(run(entry, layer, images), layer, images, entry.precision, **steps)


@pytest.mark.gpu
@entries
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
def test_rung_applies_bias_and_activation(entry, activation, rng):
    image = 3, 10, 13
    layer = random_layer(rng, image, (6, 3, 3), activation)
    images = rng.normal(size=(5, *image)).astype(np.float32)
    assert_right(run(entry, layer, images), layer, images, entry.precision)


@pytest.mark.gpu
@entries
@pytest.mark.parametrize(("image", "filters"), [((1, 26, 30), (4, 7, 7)), ((4, 20, 17), (16, 7, 7))])
def test_rung_puts_every_number_in_its_place(entry, image, filters):
    """Small integers are exact, in half precision too, and each output tells which inputs it is made of."""
    weights = np.zeros((filters[0], image[0], 7, 7))
    for number in range(filters[0]):
        weights[number, number % image[0], number * 3 % 7, number * 5 % 7] = 1
        weights[number, -1, 6 - number % 7, number * 2 % 7] += 2
    layer = Conv2d(weights, np.arange(filters[0]), Identity())
    numbers = np.arange(3 * np.prod(image)).reshape(3, *image) * 7 % 509
    images = numbers.astype(np.float32)
    assert np.array_equal(run(entry, layer, images), reference_conv2d(images, weights, np.arange(filters[0])))


@pytest.mark.gpu
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_rung_takes_one_layer_after_another(entry, rng):
    """What is kept of a layer, and what lies in constant memory, must not serve another of its geometry."""
    images = rng.normal(size=(40, 2, 15, 15)).astype(np.float32)
    placed = cupy().asarray(images)
    layers = [random_layer(rng, (2, 15, 15), (6, 3, 3)) for _ in range(4)]
    uploaded = [upload_conv(0, layer, (2, 15, 15)) for layer in layers]
    streams = [cupy().cuda.Stream(non_blocking=True) for _ in range(2)]
    cupy().cuda.Device(0).synchronize()
    outputs = []
    for turn in range(12):  # launches on two streams that do not wait for each other by themselves
        with streams[turn % 2]:
            outputs.append((turn % 4, entry.launch(uploaded[turn % 4], placed)))
    cupy().cuda.Device(0).synchronize()
    for number, found in outputs:
        assert_right(cupy().asnumpy(found), layers[number], images, entry.precision)


@pytest.mark.gpu
@pytest.mark.parametrize("tiling", TILINGS, ids=lambda tiling: f"{tiling.rows}x{tiling.columns}")
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("case", [AWKWARD[5], *AWKWARD[17:19]], ids=str)
def test_every_tiling_with_every_number_of_parts(tiling, parts, case, monkeypatch, rng):
    image, filters, count, steps = case
    layer, images = random_layer(rng, image, filters, **steps), rng.normal(size=(count, *image)).astype(np.float32)
    tiles = -(-int(np.prod(layer.weights.shape[1:])) // 8)
    deep = -(-tiles // parts)
    monkeypatch.setattr(products, "cut_for", lambda *_: Cut(tiling, deep, -(-tiles // deep)))
    vectorized = next(rung for rung in PRODUCTS if rung.name == "conv_vectorized")
    assert_right(run(vectorized, layer, images), layer, images, "float32", **steps)
