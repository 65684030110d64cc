"""Images from host to host: how they are cut into pieces, and, on a GPU, that pieces give what all at once give."""

import numpy as np
import pytest
from convolutions import assert_near_conv2d
from hypothesis import given
from hypothesis import strategies as st

from sparsenn.backends.cuda.conv import upload_conv
from sparsenn.backends.cuda.runtime.device import cupy
from sparsenn.errors import ShapeError, UsageError
from sparsenn.layers import Conv2d
from sparsenn.studies.conv2d.direct import streamed


@given(st.integers(0, 1000), st.integers(1, 50))
def test_pieces_make_up_the_images(images, pieces):
    cut = streamed.bounds(images, pieces)
    assert [number for first, end in cut for number in range(first, end)] == list(range(images))
    assert len(cut) <= pieces
    assert all(first % streamed.MULTIPLE == 0 for first, _ in cut)


def random_layer(rng, channels, filters):
    shape = filters, channels, 7, 7
    weights = rng.normal(size=shape) / np.sqrt(np.prod(shape[1:]))
    return Conv2d(weights, rng.normal(size=filters))


def assert_right(found, layer, images):
    assert_near_conv2d(found, images, layer.weights, layer.bias_vector(), layer.activation)


@pytest.mark.gpu
@pytest.mark.parametrize("pieces", [None, 1, 2, 3, 7, 100])
@pytest.mark.parametrize("locked", [False, True], ids=["pageable", "pinned"])
def test_pieces_give_what_all_images_at_once_give(pieces, locked, rng):
    layer = random_layer(rng, 2, 5)
    given_images = rng.normal(size=(61, 2, 17, 19)).astype(np.float32)
    uploaded = upload_conv(0, layer, (2, 17, 19))
    expected = streamed.run_streamed(uploaded, given_images, 1)
    assert_right(expected, layer, given_images)
    images, outputs = given_images, None
    if locked:
        images, outputs = streamed.pinned(given_images.shape), streamed.pinned(expected.shape)
        images[...], outputs[...] = given_images, np.nan
        assert streamed.is_pinned(outputs[3:])
    assert streamed.is_pinned(images) == locked
    found = streamed.run_streamed(uploaded, images, pieces, outputs)
    assert outputs is None or found is outputs
    # pieces may be cut otherwise than all images; but each sum is the same
    assert np.array_equal(found, expected)


@pytest.mark.gpu
def test_streamed_takes_images_where_they_are(rng):
    layer = random_layer(rng, 1, 4)
    images = rng.normal(size=(30, 1, 12, 12)).astype(np.float32)
    uploaded = upload_conv(0, layer, (1, 12, 12))
    here = streamed.launch_streamed(uploaded, images)
    assert type(here) is np.ndarray
    assert_right(here, layer, images)
    there = streamed.launch_streamed(uploaded, cupy().asarray(images))
    assert isinstance(there, cupy().ndarray)
    assert_right(cupy().asnumpy(there), layer, images)
    assert streamed.run_streamed(uploaded, images[:0]).shape == (0, 4, 6, 6)
    with pytest.raises(ShapeError, match="array for the outputs"):
        streamed.run_streamed(uploaded, images, 3, np.empty((30, 4, 6, 5), np.float32))
    with pytest.raises(UsageError, match="strides"):
        streamed.run_streamed(uploaded, images.transpose(0, 1, 3, 2))
