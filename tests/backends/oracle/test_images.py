"""The oracle of layers of images: by hand, and against SciPy."""

import numpy as np
import pytest
from scipy.signal import correlate
from scipy.special import softmax as scipy_softmax

from sparsenn.backends.oracle import images as reference_images
from sparsenn.backends.oracle.images import forward_images
from sparsenn.errors import ShapeError, UsageError
from sparsenn.layers import AvgPool2d, Conv2d, Flatten, Identity, ImageLayer, MaxPool2d, ReLU, Softmax, Tanh

SQUARE = np.arange(16.0).reshape(1, 1, 4, 4)
"""Rows 0 1 2 3, 4 5 6 7, 8 9 10 11, 12 13 14 15."""


def test_a_convolution_by_hand():
    layer = Conv2d([[[[1, 2], [3, -4]]]], 0.5, Identity())
    # the first: 0 + 2·1 + 3·4 - 4·5 + 0.5
    assert forward_images(layer, SQUARE)[0, 0].tolist() == [[-5.5, -3.5, -1.5], [2.5, 4.5, 6.5], [10.5, 12.5, 14.5]]


def test_steps_by_hand():
    def found(**steps):
        return forward_images(Conv2d(np.ones((1, 1, 2, 2)), None, Identity(), **steps), SQUARE)[0, 0].tolist()

    assert found(stride=2) == [[10, 18], [42, 50]]
    assert found(stride=(2, 1)) == [[10, 14, 18], [42, 46, 50]]
    assert found(dilation=3) == [[0 + 3 + 12 + 15]]
    assert found(dilation=(1, 2)) == [[0 + 2 + 4 + 6, 12 + 4], [28, 32], [44, 48]]
    assert found(padding=(1, 0), stride=(3, 2)) == [[1, 5], [42, 50]]


def test_groups_see_their_own_channels():
    images = np.concatenate([SQUARE, 100 * SQUARE], axis=1)
    layer = Conv2d([[[[1]]], [[[2]]], [[[3]]], [[[4]]]], [0, 0, 1, 1], Identity(), groups=2)
    found = forward_images(layer, images)
    expected = [SQUARE[0, 0], 2 * SQUARE[0, 0], 300 * SQUARE[0, 0] + 1, 400 * SQUARE[0, 0] + 1]
    assert np.array_equal(found[0], expected)


@pytest.mark.parametrize("channels", [1, 3])
def test_convolutions_are_scipys(channels, rng):
    images, weights = rng.normal(size=(3, channels, 9, 7)), rng.normal(size=(2, channels, 3, 4)).astype(np.float32)
    found = forward_images(Conv2d(weights, [0.5, -1.0], Tanh()), images)
    for image in range(3):
        for filter_ in range(2):
            sums = correlate(images[image], weights[filter_].astype(np.float64), "valid")[0]
            np.testing.assert_allclose(found[image, filter_], np.tanh(sums + (0.5, -1.0)[filter_]), rtol=1e-12)


def test_the_largest_number_by_hand():
    assert forward_images(MaxPool2d(2), SQUARE)[0, 0].tolist() == [[5, 7], [13, 15]]
    assert forward_images(MaxPool2d(3, 2, 1), SQUARE)[0, 0].tolist() == [[5, 7], [13, 15]]
    assert forward_images(MaxPool2d(3, 1), SQUARE)[0, 0].tolist() == [[10, 11], [14, 15]]
    assert forward_images(MaxPool2d(2, padding=1), -1 - SQUARE)[0, 0].tolist() == [
        [-1, -2, -4],
        [-5, -6, -8],
        [-13, -14, -16],
    ]


def test_the_mean_counts_padding_by_hand():
    assert forward_images(AvgPool2d(2), SQUARE)[0, 0].tolist() == [[2.5, 4.5], [10.5, 12.5]]
    assert forward_images(AvgPool2d(2, padding=1), SQUARE)[0, 0].tolist() == [
        [0, 0.75, 0.75],
        [3, 7.5, 4.5],
        [3, 6.75, 3.75],
    ]
    assert forward_images(AvgPool2d((1, 4), 1, (0, 1)), SQUARE)[0, 0, 0].tolist() == [0.75, 1.5, 1.5]


def test_nan_reaches_every_window_that_holds_it():
    spoilt = SQUARE.copy()
    spoilt[0, 0, 1, 1] = np.nan
    for layer in (MaxPool2d(2), AvgPool2d(2), Conv2d(np.ones((1, 1, 2, 2)), stride=2)):
        assert np.isnan(forward_images(layer, spoilt))[0, 0].tolist() == [[True, False], [False, False]]
    assert np.isnan(forward_images(Softmax(), spoilt)).all()


def test_minus_infinity_is_a_number_like_any_other():
    lowest = np.full((1, 1, 2, 2), -np.inf)
    assert forward_images(MaxPool2d(2), lowest) == -np.inf


def test_shares_are_scipys_and_do_not_overflow(rng):
    rows = np.concatenate([rng.normal(size=(4, 9)), 1e4 * rng.normal(size=(4, 9)), np.zeros((1, 9))])
    found = forward_images(Softmax(), rows)
    np.testing.assert_allclose(found, scipy_softmax(rows, axis=1), rtol=1e-12)
    np.testing.assert_allclose(found.sum(axis=1), 1)
    assert np.array_equal(forward_images(Softmax(), rows.reshape(9, 1, 3, 3)).reshape(9, 9), found)


def test_flattening_keeps_the_order(rng):
    images = rng.normal(size=(2, 3, 4, 5))
    assert np.array_equal(forward_images(Flatten(), images), [image.ravel() for image in images])


LAYERS = [
    Conv2d(np.ones((2, 3, 2, 2)), 0.1, ReLU(), padding=1),
    MaxPool2d(2),
    AvgPool2d(3, 1, 1),
    Flatten(),
    Softmax(),
]


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.name)
@pytest.mark.parametrize("count", [0, 1, 5])
def test_batches_are_joined_in_order(layer, count, rng, monkeypatch):
    images = rng.normal(size=(count, 3, 6, 5)).astype(np.float32)
    whole = forward_images(layer, images)
    assert whole.dtype == np.float64
    assert whole.shape == layer.output_shape(images.shape)
    monkeypatch.setattr(reference_images, "WINDOW_BYTES", 1)
    np.testing.assert_allclose(forward_images(layer, images), whole, rtol=1e-14)


def test_images_stay_as_they_were(rng):
    images = rng.normal(size=(2, 3, 6, 5))
    before = images.copy()
    for layer in LAYERS:
        forward_images(layer, images)
        assert np.array_equal(images, before)


def test_what_is_not_known_is_refused():
    class Unknown(ImageLayer):
        name = "unknown"
        keeps_zero_rows = True

        def _output_shape(self, input_shape):
            return input_shape

    with pytest.raises(UsageError, match="does not know the layer Unknown"):
        forward_images(Unknown(), SQUARE)
    with pytest.raises(ShapeError, match="larger than an image"):
        forward_images(Conv2d(np.ones((1, 1, 5, 5))), SQUARE)
