"""The reference of convolution tests against SciPy's, and its judgement of answers that were spoilt."""

import numpy as np
import pytest
from convolutions import reference_conv2d
from scipy.signal import correlate2d


@pytest.mark.parametrize("options", [{}, {"padding": (2, 1)}, {"stride": (2, 3)}, {"dilation": (2, 1), "padding": 1}])
def test_reference_is_scipys(options, rng):
    images, weights = rng.normal(size=(2, 3, 11, 9)), rng.normal(size=(4, 3, 3, 2))
    found = reference_conv2d(images, weights, [0.0, 1.0, 2.0, 3.0], **options)
    (down, across), (above, beside), (apart_down, apart_across) = (
        np.broadcast_to(options.get(name, usual), 2) for name, usual in (("stride", 1), ("padding", 0), ("dilation", 1))
    )
    spread = np.zeros((4, 3, 2 * apart_down + 1, apart_across + 1))
    spread[:, :, ::apart_down, ::apart_across] = weights
    padded = np.pad(images, ((0, 0), (0, 0), (above, above), (beside, beside)))
    for image in range(2):
        for number in range(4):
            sums = sum(correlate2d(padded[image, c], spread[number, c], "valid") for c in range(3))
            assert np.allclose(found[image, number], sums[::down, ::across] + number, rtol=1e-13, atol=1e-13)
