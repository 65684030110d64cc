"""The CPU's convolution: images in any memory order, buffers between launches, unknown activations."""

import numpy as np
import pytest
from convolutions import assert_near_conv2d
from formulas import Unknown

from sparsenn.backends.cpu.convolution import DIRECT, launch_direct
from sparsenn.backends.cpu.processor import host_machine
from sparsenn.errors import UsageError
from sparsenn.layers import Conv2d, ReLU


def assert_near(layer, images):
    _, stride, padding, dilation = layer.sliding_window
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": layer.groups}
    found = launch_direct(layer, images)
    assert found.dtype == np.float32
    assert_near_conv2d(found, images, layer.weights, layer.bias, layer.activation, **options)


def test_images_in_any_memory_order(rng):
    layer = Conv2d(rng.normal(size=(5, 3, 3, 3)), 0.1, ReLU(), padding=1)
    images = rng.normal(size=(4, 9, 8, 3)).astype(np.float32).transpose(0, 3, 1, 2)
    assert_near(layer, images)
    assert_near(layer, images[::-2])
    assert launch_direct(layer, images[:0]).shape == (0, 5, 9, 8)


def test_buffers_of_larger_images_leave_nothing_behind(rng):
    """A thread keeps its buffers from launch to launch; padding must be zeros all the same."""
    for size in (30, 9, 17, 5):
        layer = Conv2d(rng.normal(size=(4, 2, 3, 3)), None, ReLU(), stride=2, padding=2)
        assert_near(layer, rng.normal(size=(3, 2, size, size)).astype(np.float32))


def test_an_unknown_activation_is_refused():
    layer, images = Conv2d(np.ones((1, 1, 2, 2)), 1.0, Unknown()), np.ones((1, 1, 2, 2), np.float32)
    assert "do not know the activation" in DIRECT.why_not(host_machine(), layer, (1, 2, 2))
    with pytest.raises(UsageError, match="do not know the activation"):
        launch_direct(layer, images)
