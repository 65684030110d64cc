"""Filters of one channel: emulated on the host, beside the kernel that takes any convolution."""

import numpy as np
import pytest
from convolutions import assert_near_conv2d, drawn_numbers, options_of
from emulation import emulated

from sparsenn.backends.cuda.conv import Geometry, depthwise, unrolled
from sparsenn.backends.cuda.conv.depthwise import SOURCE, fits, launch_depthwise, shape_defines
from sparsenn.backends.cuda.conv.geometry import upload_conv
from sparsenn.backends.cuda.runtime.activation import IDENTITY
from sparsenn.backends.cuda.runtime.device import cupy
from sparsenn.backends.sizes import parts_of
from sparsenn.layers import Conv2d, ReLU

CASES = {
    "square": (2, Geometry(5, 14, 14, 5, (3, 3), (1, 1), (1, 1), groups=5)),
    "strided": (2, Geometry(4, 17, 23, 4, (3, 3), (2, 2), (1, 1), groups=4)),
    "several": (3, Geometry(3, 9, 7, 6, (5, 5), (1, 2), (2, 2), groups=3)),
    "spread": (1, Geometry(2, 20, 31, 2, (3, 4), (3, 1), (2, 3), (2, 3), groups=2)),
    "wide": (1, Geometry(2, 12, 10, 2, (7, 7), (1, 1), (3, 3), groups=2)),
    "pixels": (4, Geometry(6, 3, 2, 6, (1, 1), groups=6)),
    "outside": (2, Geometry(2, 5, 5, 2, (2, 2), (2, 2), (4, 4), groups=2)),
}
"""Images, and their geometry."""


def drawn(rng, count, geometry):
    images, weights, bias = drawn_numbers(rng, count, geometry, integers=False)
    return images, np.ascontiguousarray(weights[:, :1]), bias


def by_unrolled(count, geometry, images, weights, bias):
    """Outputs of a grid of one row, whose blocks take one tile after the other."""
    cut = unrolled.shape_defines(geometry)
    shape = count, geometry.filters, geometry.output_height, geometry.output_width
    outputs = np.full(shape, np.nan, np.float32)
    kernel = emulated(unrolled.SOURCE, {"ACTIVATION": IDENTITY, **cut})
    arrays = images, weights, bias, np.float32(np.inf), outputs, np.int64(count * geometry.filters)
    kernel.launch(parts_of(count * geometry.filters, cut["PLANES"]), unrolled.THREADS, *arrays)
    return outputs


@pytest.mark.parametrize("name", CASES)
def test_bits_are_those_of_the_kernel_that_takes_any(name, rng):
    count, geometry = CASES[name]
    images, weights, bias = drawn(rng, count, geometry)
    outputs = np.full((count, geometry.filters, geometry.output_height, geometry.output_width), np.nan, np.float32)
    defines = shape_defines(geometry)
    strips = parts_of(geometry.output_height, defines["STRIP"]) * geometry.output_width
    planes = count * geometry.filters
    arrays = images, weights, bias, np.float32(np.inf), outputs, np.uint32(planes)
    emulated(SOURCE, {"ACTIVATION": IDENTITY, **defines}).launch(
        parts_of(planes * strips, depthwise.THREADS), depthwise.THREADS, *arrays
    )
    assert np.array_equal(outputs, by_unrolled(count, geometry, images, weights, bias))
    assert_near_conv2d(outputs, images, weights, bias, None, **options_of(geometry), groups=geometry.groups)


@pytest.mark.gpu
@pytest.mark.parametrize("most", [depthwise.MOST_THREADS, 100])
def test_images_run_in_as_many_launches_as_threads_can_be_counted(most, monkeypatch, rng):
    count, geometry = CASES["square"]
    images, weights, bias = drawn(rng, count, geometry)
    monkeypatch.setattr(depthwise, "MOST_THREADS", most)
    layer = Conv2d(weights, bias, ReLU(1.0), groups=geometry.groups, **options_of(geometry))
    uploaded = upload_conv(0, layer, images.shape[1:])
    found = cupy().asnumpy(launch_depthwise(uploaded, cupy().asarray(images)))
    assert_near_conv2d(found, images, weights, bias, ReLU(1.0), **options_of(geometry), groups=geometry.groups)


def test_what_fits():
    assert fits(Geometry(8, 9, 9, 16, (3, 3), groups=8)) is None
    assert "one in each" in fits(Geometry(8, 9, 9, 8, (3, 3)))
    assert "one in each" in fits(Geometry(8, 9, 9, 8, (3, 3), groups=4))
    assert "up to 49" in fits(Geometry(8, 9, 9, 8, (8, 8), groups=8))


@pytest.mark.parametrize(("height", "outputs"), [(112, 8), (56, 8), (28, 7), (14, 7), (7, 7), (3, 3), (1, 1)])
def test_few_outputs_of_a_thread_stand_over(height, outputs):
    geometry = Geometry(2, height, height, 2, (3, 3), padding=(1, 1), groups=2)
    assert shape_defines(geometry)["STRIP"] == outputs
