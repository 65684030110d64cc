"""How the CPU's convolutions cut their work: into lanes, filters, images below each other, and pieces of patches."""

import numpy as np
import pytest
from convolutions import assert_near_conv2d
from hypothesis import given
from hypothesis import strategies as st
from image_strategies import convolutions

from sparsenn.backends import automatic
from sparsenn.backends.cpu import convolution
from sparsenn.backends.cpu.convolution import DIRECT, IM2COL_BLAS, launch_direct, launch_im2col_blas
from sparsenn.backends.cpu.processor import host_machine
from sparsenn.errors import UsageError
from sparsenn.layers import Conv2d, ReLU

LAUNCHES = pytest.mark.parametrize("launch", [launch_direct, launch_im2col_blas])


def assert_near(launch, layer, images):
    _, stride, padding, dilation = layer.sliding_window
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": layer.groups}
    found = launch(layer, images)
    assert found.dtype == np.float32
    assert_near_conv2d(found, images, layer.weights, layer.bias, layer.activation, **options)


@pytest.mark.parametrize("piece", [1, 5000, 16 << 20])
@given(problem=convolutions(), count=st.integers(1, 20), seed=st.integers(0, 2**32 - 1))
def test_every_cut_of_patches_gives_the_same(piece, problem, count, seed):
    layer, shape = problem
    images = np.random.default_rng(seed).normal(size=(count, *shape)).astype(np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(convolution, "PIECE_BYTES", piece)
        assert_near(launch_im2col_blas, layer, images)


@LAUNCHES
def test_images_in_any_memory_order(launch, rng):
    layer = Conv2d(rng.normal(size=(5, 3, 3, 3)), 0.1, ReLU(), padding=1)
    images = rng.normal(size=(4, 9, 8, 3)).astype(np.float32).transpose(0, 3, 1, 2)
    assert_near(launch, layer, images)
    assert_near(launch, layer, images[::-2])
    assert launch(layer, images[:0]).shape == (0, 5, 9, 8)


def test_buffers_of_larger_images_leave_nothing_behind(rng):
    """A thread keeps its buffers from launch to launch; padding must be zeros all the same."""
    for size in (30, 9, 17, 5):
        layer = Conv2d(rng.normal(size=(4, 2, 3, 3)), None, ReLU(), stride=2, padding=2)
        assert_near(launch_direct, layer, rng.normal(size=(3, 2, size, size)).astype(np.float32))


class Doubled:
    """An activation that the kernels do not know."""

    name = "doubled"

    def __call__(self, z):
        return 2 * z


def test_an_unknown_activation_goes_to_the_kernel_that_takes_it(rng):
    layer, images = Conv2d(np.ones((1, 1, 2, 2)), 1.0, Doubled()), np.ones((1, 1, 2, 2), np.float32)
    assert "do not know the activation" in DIRECT.why_not(host_machine(), layer, (1, 2, 2))
    assert IM2COL_BLAS.why_not(host_machine(), layer, (1, 2, 2)) is None
    assert launch_im2col_blas(layer, images) == 10.0
    with pytest.raises(UsageError, match="do not know the activation"):
        launch_direct(layer, images)


@pytest.mark.parametrize(
    ("layer", "image", "name"),
    [
        (Conv2d(np.ones((4, 1, 7, 7))), (1, 86, 86), "conv_direct"),
        (Conv2d(np.ones((64, 64, 3, 3)), padding=1), (64, 56, 56), "conv_direct"),
        (Conv2d(np.ones((120, 16, 5, 5))), (16, 5, 5), "conv_im2col_blas"),
    ],
    ids=["few channels", "many channels", "one output pixel"],
)
def test_estimates_name_the_faster_kernel(layer, image, name):
    found = min(automatic("conv2d", "cpu"), key=lambda kernel: kernel.seconds(host_machine(), layer, image))
    assert found.name == name


def test_the_preferred_kernel_comes_first():
    assert automatic("conv2d", "cpu") == (DIRECT, IM2COL_BLAS)


def test_pieces_of_patches_can_be_tuned(rng):
    layer = Conv2d(rng.normal(size=(5, 3, 3, 3)), 0.1, ReLU(), padding=1)
    images = rng.normal(size=(4, 3, 9, 8)).astype(np.float32)
    tunable = IM2COL_BLAS.tunable
    for numbers in tunable.combinations():
        assert_near(tunable.launch_with(numbers), layer, images)
    assert tunable.sizes(layer, images) == (
        "images 4-7 of 3x9x8, filters 5x3x3x3, stride 1x1, padding 1x1, dilation 1x1"
    )
