"""Layers of images with channels last: their kernels and whole stacks, on a GPU; see also `test_on_tensor_cores`."""

import numpy as np
import pytest
from convolutions import assert_near_conv2d, options_of

from sparsenn import Add, Concatenate, Flatten, Linear, Network, Node, Session
from sparsenn.backends.cuda.conv import Geometry, channels_last, cudnn
from sparsenn.backends.cuda.conv.channels_last import CUDNN_FLOAT16, CUDNN_TF32, fits, lanes_of
from sparsenn.backends.cuda.conv.geometry import upload_conv
from sparsenn.backends.cuda.runtime.device import cupy
from sparsenn.backends.kernel_records import ImageStack
from sparsenn.backends.machine import H200
from sparsenn.layers import AvgPool2d, Conv2d, Identity, MaxPool2d, ReLU

KERNELS = {"tf32": CUDNN_TF32, "float16": CUDNN_FLOAT16}
ALLOWED = 2e-2
"""In parts of the largest output."""


def convolution(rng, channels, filters, size=3, activation=None, groups=1, **options):
    weights = rng.normal(size=(filters, channels // groups, size, size)) / size / np.sqrt(channels // groups)
    bias = rng.normal(size=filters)
    return Conv2d(weights.astype(np.float32), bias.astype(np.float32), activation or ReLU(), groups=groups, **options)


def residual_network(rng):
    """Pooling, sums that end a convolution and others, filters of one channel, and a concatenation."""
    image = 3, 13, 11
    return Network(
        (
            Node(convolution(rng, 3, 12, 3, stride=2, padding=1), (0,)),  # 1: (12, 7, 6)
            Node(MaxPool2d(3, 2, padding=1), (1,)),  # 2: (12, 4, 3)
            Node(convolution(rng, 12, 16, 1), (2,)),  # 3
            Node(convolution(rng, 16, 16, 3, groups=16, padding=1), (3,)),  # 4
            Node(convolution(rng, 16, 12, 1, Identity()), (4,)),  # 5
            Node(Add(ReLU()), (2, 5)),  # 6: ends 5
            Node(convolution(rng, 12, 16, 3, Identity(), padding=1), (6,)),  # 7
            Node(convolution(rng, 12, 16, 1, Identity()), (6,)),  # 8
            Node(Add(ReLU()), (7, 8)),  # 9: ends 8
            Node(convolution(rng, 16, 16, 3, ReLU(1.0), groups=2, padding=1), (9,)),  # 10
            Node(Concatenate(), (9, 10)),  # 11: (32, 4, 3)
            Node(AvgPool2d((2, 3), 1, padding=(1, 1)), (11,)),  # 12
            Node(Add(), (12, 12)),  # 13
            Node(Flatten(), (13,)),
        ),
        image=image,
    )


def expected_of(network, rows):
    return Session(network, device="reference")(rows)


def assert_near(found, expected):
    assert found.shape == expected.shape
    assert np.abs(found - expected).max(initial=0) <= ALLOWED * np.abs(expected).max(initial=0)


@pytest.fixture(autouse=True)
def _only_with_the_library(request):
    if request.node.get_closest_marker("gpu") and (reason := cudnn.why_no_library()):
        pytest.skip(reason)


def stack_of(network):
    layers, shapes = network.layers, [network.shapes[0], *network.shapes[1:]]
    prepared = [
        upload_conv(0, layer, network.input_shapes(number)[0]) if isinstance(layer, Conv2d) else layer
        for number, layer in enumerate(layers)
    ]
    return ImageStack(layers, tuple(shapes), tuple(prepared), tuple(node.sources for node in network.nodes))


def run_stack(precision, network, rows):
    found = channels_last.run_stack(precision, stack_of(network), cupy().asarray(rows))
    assert found.dtype == rows.dtype
    return cupy().asnumpy(found)


@pytest.mark.gpu
@pytest.mark.parametrize("rows_type", [np.float32, np.float16])
@pytest.mark.parametrize("precision", KERNELS)
@pytest.mark.parametrize("changed", [{}, {"MOST_NUMBERS": 3000}, {"plan_of": lambda *asked: None}], ids=list)
def test_a_stack_of_layers(precision, rows_type, changed, monkeypatch, rng):
    """All images at once, few at a time, and where the library has no plan, so that another kernel convolves."""
    for name, value in changed.items():
        monkeypatch.setattr(channels_last, name, value)
    network = residual_network(rng)
    for count in (5, 0):
        rows = rng.normal(size=(count, network.inputs)).astype(rows_type)
        assert_near(run_stack(precision, network, rows), expected_of(network, rows.astype(np.float32)))


@pytest.mark.gpu
@pytest.mark.parametrize(
    "geometry",
    [
        Geometry(11, 9, 10, 11, (3, 3), (1, 1), (1, 1), groups=11),
        Geometry(8, 9, 10, 8, (3, 3), (2, 2), (1, 1), groups=8),
        Geometry(5, 9, 17, 5, (5, 4), (1, 2), (2, 0), (1, 3), groups=5),
        Geometry(3, 8, 8, 3, (7, 7), (1, 1), (3, 3), (2, 1), groups=3),
        Geometry(2, 4, 5, 2, (1, 1), (2, 3), groups=2),
    ],
    ids=str,
)
@pytest.mark.parametrize("precision", KERNELS)
def test_filters_of_one_channel(precision, geometry, rng):
    images = rng.normal(size=(2, geometry.channels, geometry.height, geometry.width)).astype(np.float32)
    weights = rng.normal(size=(geometry.filters, 1, *geometry.kernel)).astype(np.float32)
    bias = rng.normal(size=geometry.filters).astype(np.float32)
    layer = Conv2d(weights, bias, ReLU(), **options_of(geometry), groups=geometry.groups)
    uploaded = upload_conv(0, layer, images.shape[1:])
    found = cupy().asnumpy(channels_last._launch_one(precision, uploaded, cupy().asarray(images)))
    assert_near_conv2d(found, images, weights, bias, ReLU(), precision, **options_of(geometry), groups=geometry.groups)


def test_what_fits(monkeypatch):
    monkeypatch.setattr(channels_last, "why_no_library", lambda: None)
    assert fits(H200, Geometry(64, 56, 56, 128, (3, 3), (2, 2), (1, 1), (2, 2), 4)) is None
    assert fits(H200, Geometry(3, 56, 56, 5, (3, 3))) is None
    assert fits(H200, Geometry(20, 28, 28, 20, (3, 3), groups=20)) is None
    assert "columns" in fits(H200, Geometry(20, 28, 28, 20, (3, 9), groups=20))
    assert "multiple of 8" in fits(H200, Geometry(12, 9, 7, 8, (3, 2), groups=2))
    assert "would have" in fits(H200, Geometry(1 << 16, 1 << 9, 1 << 9, 4, (3, 3)))


def test_channels_of_a_tap_lie_side_by_side(rng):
    weights = rng.normal(size=(4, 5, 3, 2)).astype(np.float32)
    found = channels_last._arranged(1, np.float16, weights)
    assert found.flags.c_contiguous
    assert found.shape == (lanes_of(4), 3, 2, lanes_of(5))
    assert np.array_equal(found[:4, ..., :5], weights.transpose(0, 2, 3, 1).astype(np.float16))
    assert not found[4:].any()
    assert not found[..., 5:].any()


# ---- In sessions ---------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("precision", KERNELS)
def test_a_deep_network_is_one_step(precision, rng):
    network = residual_network(rng)
    network = Network((*network.nodes, Node(Linear(_square(rng, network.outputs)), (14,))), network.image)
    rows = rng.normal(size=(4, network.inputs)).astype(np.float32)
    session = Session(network, device="cuda", precision=precision, kernel=KERNELS[precision].name)
    assert_near(session(rows), expected_of(network, rows))
    assert [step.last - step.first for step in session.plan(rows).steps] == [14, 1]


def _square(rng, width):
    return (rng.normal(size=(width, width)) / np.sqrt(width)).astype(np.float32)
