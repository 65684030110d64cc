"""The oracle of layers of images, in float64 against SciPy; `test_image_conformance.py` has any layers and shapes."""

import numpy as np
import pytest
from scipy.signal import correlate
from scipy.special import softmax as scipy_softmax

from sparsenn.backends.oracle import images as reference_images
from sparsenn.backends.oracle.images import forward_images
from sparsenn.errors import ShapeError, UsageError
from sparsenn.layers import AvgPool2d, Conv2d, Flatten, ImageLayer, MaxPool2d, ReLU, Softmax, Tanh


@pytest.mark.parametrize("channels", [1, 3])
def test_convolutions_are_scipys(channels, rng):
    images, weights = rng.normal(size=(3, channels, 9, 7)), rng.normal(size=(2, channels, 3, 4)).astype(np.float32)
    found = forward_images(Conv2d(weights, [0.5, -1.0], Tanh()), images)
    for image in range(3):
        for filter_ in range(2):
            sums = correlate(images[image], weights[filter_].astype(np.float64), "valid")[0]
            np.testing.assert_allclose(found[image, filter_], np.tanh(sums + (0.5, -1.0)[filter_]), rtol=1e-12)


def test_shares_are_scipys_and_do_not_overflow(rng):
    rows = np.concatenate([rng.normal(size=(4, 9)), 1e4 * rng.normal(size=(4, 9)), np.zeros((1, 9))])
    found = forward_images(Softmax(), rows)
    np.testing.assert_allclose(found, scipy_softmax(rows, axis=1), rtol=1e-12)
    np.testing.assert_allclose(found.sum(axis=1), 1)
    assert np.array_equal(forward_images(Softmax(), rows.reshape(9, 1, 3, 3)).reshape(9, 9), found)


LAYERS = [Conv2d(np.ones((2, 3, 2, 2)), 0.1, ReLU(), padding=1), MaxPool2d(2), AvgPool2d(3, 1, 1), Flatten(), Softmax()]


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
        forward_images(Unknown(), np.ones((1, 1, 4, 4)))
    with pytest.raises(ShapeError, match="larger than an image"):
        forward_images(Conv2d(np.ones((1, 1, 5, 5))), np.ones((1, 1, 4, 4)))
