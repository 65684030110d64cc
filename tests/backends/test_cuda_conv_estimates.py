"""Which CUDA kernel a convolution gets: that which an H200 was seen to be fastest with."""

import numpy as np
import pytest

from sparsenn.backends import variants
from sparsenn.engine.kernels import AUTO, choose_convolution
from sparsenn.errors import UsageError
from sparsenn.layers import Conv2d

FEW = {"tensor_float32", "tensor_tf32", "tensor_half"}
MANY = {"warpgroup_float32", "warpgroup_tf32", "warpgroup_half"}


def chosen(precision, image, filters, kernel, **steps):
    registered = {entry.name: entry for entry in variants("conv2d", "cuda")}
    candidates = [registered[name] for name in AUTO["conv2d"]["cuda"]]
    enough = [entry for entry in candidates if entry.precision in (precision, "float32")]
    weights = np.ones((filters, image[0] // steps.get("groups", 1), kernel, kernel))
    return choose_convolution(enough, Conv2d(weights, **steps), image, 0).kernel


def test_every_kernel_of_auto_gives_an_estimate():
    registered = {entry.name: entry for entry in variants("conv2d", "cuda")}
    for name in AUTO["conv2d"]["cuda"]:
        layer = Conv2d(np.ones((8, 32, 3, 3)), padding=1)
        assert 0 < registered[name].seconds(layer, (32, 28, 28)) < 1


@pytest.mark.parametrize("precision", ["float32", "tf32", "fp16"])
def test_few_channels_and_many_have_kernels_of_their_own(precision):
    for image, filters in (((1, 86, 86), 4), ((4, 40, 40), 16)):
        found = chosen(precision, image, filters, 7)
        assert (found.name in FEW, found.precision) == (True, precision)
    found = chosen(precision, (512, 14, 14), 512, 3, padding=1)
    assert (found.name in MANY, found.precision) == (True, precision)


@pytest.mark.parametrize("precision", ["float32", "tf32", "fp16"])
def test_any_convolution_finds_a_kernel_that_keeps_the_precision(precision):
    for steps in ({"groups": 8}, {"stride": 5, "dilation": 3}, {"groups": 32, "stride": 2, "padding": 1}):
        assert chosen(precision, (32, 28, 28), 32, 3, **steps).precision in (precision, "float32")
    assert chosen(precision, (32, 28, 28), 32, 3, groups=8).name == "unrolled"


def test_a_kernel_of_less_precision_is_no_choice():
    refused = [entry for entry in variants("conv2d", "cuda") if entry.name == "tensor_half"]
    with pytest.raises(UsageError, match="stride"):
        choose_convolution(refused, Conv2d(np.ones((4, 1, 7, 7)), stride=2), (1, 86, 86), 0)
