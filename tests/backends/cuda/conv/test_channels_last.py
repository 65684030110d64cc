"""Layers of images with channels last: their kernels and whole stacks in emulation, where NumPy convolves; on a GPU see
also `test_on_tensor_cores`."""

from contextlib import nullcontext

import numpy as np
import pytest
from convolutions import assert_near_conv2d, options_of, reference_conv2d
from device_emulation import OnDevice, emulated_device
from emulation import emulated
from tiers import rest_slow

from sparsenn import Add, Concatenate, Flatten, Linear, Network, Node, Session
from sparsenn.backends.cuda import images
from sparsenn.backends.cuda.conv import Geometry, channels_last, cudnn
from sparsenn.backends.cuda.conv.channels_last import CUDNN_FLOAT16, CUDNN_TF32, fits, lanes_of
from sparsenn.backends.cuda.conv.layer import upload_conv
from sparsenn.backends.cuda.runtime import layer_cache
from sparsenn.backends.cuda.runtime.loader import Program
from sparsenn.backends.kernel_records import ImageStack
from sparsenn.backends.machine import H200
from sparsenn.layers import AvgPool2d, Conv2d, Identity, MaxPool2d, ReLU

KERNELS = {"tf32": CUDNN_TF32, "float16": CUDNN_FLOAT16}
ALLOWED = {"tf32": 1e-5, "float16": 1e-2}  # of the largest output; NumPy convolves in float32 and more


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
    """The outputs in float64."""
    return Session(network, device="reference")(rows)


# ---- Emulated ------------------------------------------------------------------------------------------------------


class NumPyPlan:
    """A plan of the library's, by NumPy."""

    def __init__(self, geometry) -> None:
        self.geometry = geometry

    def run(self, device, images, weights, sums):
        geometry = self.geometry
        pixels = images.view(np.ndarray).reshape(-1, geometry.height, geometry.width, geometry.channels)
        filters = weights.view(np.ndarray).transpose(0, 3, 1, 2)
        assert filters.shape == (geometry.filters, geometry.channels // geometry.groups, *geometry.kernel)
        found = reference_conv2d(pixels.transpose(0, 3, 1, 2), filters, **options_of(geometry), groups=geometry.groups)
        sums.view(np.ndarray)[:] = found.transpose(0, 2, 3, 1).reshape(sums.shape)


def copy_rows(source, target):
    target.view(np.ndarray)[:] = source.view(np.ndarray)


@pytest.fixture
def here(monkeypatch):
    """An emulated device with a library; returns the geometries of its plans."""
    planned = []

    def plan_of(precision, geometry, count, device):
        planned.append(geometry)
        return NumPyPlan(geometry)

    def emulated_kernel(program, name, **defines):
        given = {define: values[0] for define, values in (program.choices or {}).items()} | defines
        kernel = emulated(program.source, given)

        def launch(grid, block, arguments, shared_mem=0):
            arrays = [each.view(np.ndarray) if isinstance(each, np.ndarray) else each for each in arguments]
            kernel.launch(*grid, *block, *arrays)

        return launch

    with emulated_device(monkeypatch):
        monkeypatch.setattr(Program, "kernel", emulated_kernel)
        monkeypatch.setattr(layer_cache, "lasting_memory", nullcontext)
        monkeypatch.setattr(channels_last, "plan_of", plan_of)
        monkeypatch.setattr(channels_last, "why_no_library", lambda: None)
        monkeypatch.setattr(channels_last, "as_current", lambda device: nullcontext())
        monkeypatch.setattr(channels_last, "machine_of", lambda device: H200)
        monkeypatch.setattr(cudnn, "machine_of", lambda device: H200)
        monkeypatch.setattr(images, "copy_rows", copy_rows)
        yield planned


def stack_of(network):
    layers, shapes = network.layers, [network.shapes[0], *network.shapes[1:]]
    prepared = [
        upload_conv(0, layer, network.input_shapes(number)[0]) if isinstance(layer, Conv2d) else layer
        for number, layer in enumerate(layers)
    ]
    return ImageStack(layers, tuple(shapes), tuple(prepared), tuple(node.sources for node in network.nodes))


@pytest.mark.parametrize("rows_type", [np.float32, np.float16])
@pytest.mark.parametrize("precision", KERNELS)
def test_a_stack_of_layers(precision, rows_type, here, rng):
    network = residual_network(rng)
    rows = rng.normal(size=(3, network.inputs)).astype(rows_type)
    scanned = []
    found = channels_last.run_stack(
        precision, stack_of(network), rows.view(OnDevice), lambda number, numbers: scanned.append(number)
    ).view(np.ndarray)
    expected = expected_of(network, rows.astype(np.float32))
    assert found.dtype == rows_type
    allowed = max(ALLOWED[precision], 1e-3 if rows_type is np.float16 else 0)
    assert np.abs(found - expected).max() < allowed * np.abs(expected).max()
    assert [each.channels for each in here] == [8, 16, 16, 16, 16, 16]  # the first one's, then lanes
    assert scanned == [0, 0, 2, 2, 3, 5, 5, 6, 6, 8, 8, 9, 9, 12]


def test_few_images_at_a_time(here, monkeypatch, rng):
    network = residual_network(rng)
    rows = rng.normal(size=(5, network.inputs)).astype(np.float32)
    stack, whole = stack_of(network), len(here)
    expected = channels_last.run_stack("tf32", stack, rows.view(OnDevice)).view(np.ndarray)
    plans = len(here) - whole
    monkeypatch.setattr(channels_last, "MOST_NUMBERS", 3000)
    found = channels_last.run_stack("tf32", stack, rows.view(OnDevice)).view(np.ndarray)
    assert len(here) > 2 * plans
    assert np.array_equal(found, expected)


def test_no_images(here, rng):
    network = residual_network(rng)
    rows = np.zeros((0, network.inputs), np.float32).view(OnDevice)
    assert channels_last.run_stack("tf32", stack_of(network), rows).shape == (0, network.outputs)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    "geometry",
    rest_slow(
        [
            Geometry(11, 9, 10, 11, (3, 3), (1, 1), (1, 1), groups=11),
            Geometry(8, 9, 10, 8, (3, 3), (2, 2), (1, 1), groups=8),
            Geometry(5, 9, 17, 5, (5, 4), (1, 2), (2, 0), (1, 3), groups=5),
            Geometry(3, 8, 8, 3, (7, 7), (1, 1), (3, 3), (2, 1), groups=3),
            Geometry(2, 4, 5, 2, (1, 1), (2, 3), groups=2),
        ],
        fast=3,
    ),
    ids=str,
)
@pytest.mark.parametrize("precision", KERNELS)
def test_filters_of_one_channel(precision, geometry, rng):
    images = rng.normal(size=(2, geometry.channels, geometry.height, geometry.width)).astype(np.float32)
    weights = rng.normal(size=(geometry.filters, 1, *geometry.kernel)).astype(np.float32)
    bias = rng.normal(size=geometry.filters).astype(np.float32)
    layer = Conv2d(weights, bias, ReLU(), **options_of(geometry), groups=geometry.groups)
    uploaded = upload_conv(0, layer, images.shape[1:])
    found = channels_last._launch_one(precision, uploaded, images.view(OnDevice)).view(np.ndarray)
    assert_near_conv2d(found, images, weights, bias, ReLU(), precision, **options_of(geometry), groups=geometry.groups)


@pytest.mark.usefixtures("here")
def test_where_the_library_has_no_plan_another_kernel_convolves(monkeypatch, rng):
    monkeypatch.setattr(channels_last, "plan_of", lambda *asked: None)

    def launch_unrolled(layer, images):
        found = reference_conv2d(
            images.view(np.ndarray), layer.source.weights, **options_of(layer.geometry), groups=layer.geometry.groups
        )
        assert not layer.bias.view(np.ndarray).any()
        return found.astype(np.float32).view(OnDevice)

    monkeypatch.setattr(channels_last, "launch_unrolled", launch_unrolled)
    network = residual_network(rng)
    rows = rng.normal(size=(2, network.inputs)).astype(np.float32)
    found = channels_last.run_stack("tf32", stack_of(network), rows.view(OnDevice)).view(np.ndarray)
    expected = expected_of(network, rows)
    assert np.abs(found - expected).max() < 1e-5 * np.abs(expected).max()


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
    if cudnn.why_no_library():
        pytest.skip(cudnn.why_no_library())
    network = residual_network(rng)
    network = Network((*network.nodes, Node(Linear(_square(rng, network.outputs)), (14,))), network.image)
    rows = rng.normal(size=(4, network.inputs)).astype(np.float32)
    session = Session(network, device="cuda", precision=precision, kernel=KERNELS[precision].name)
    found, expected = session(rows), expected_of(network, rows)
    assert np.abs(found - expected).max() < 2e-2 * np.abs(expected).max()
    assert [step.last - step.first for step in session.plan(rows).steps] == [14, 1]


def _square(rng, width):
    return (rng.normal(size=(width, width)) / np.sqrt(width)).astype(np.float32)
