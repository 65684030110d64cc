import pytest

from sparsenn.errors import ShapeError
from sparsenn.layers import Flatten


@pytest.mark.parametrize(("shape", "expected"), [((5, 3, 4, 2), (5, 24)), ((0, 3, 4, 2), (0, 24)), ((5, 7), (5, 7))])
def test_images_become_rows(shape, expected):
    assert Flatten().output_shape(shape) == expected
    assert Flatten().keeps_zero_rows


def test_a_batch_alone_is_refused():
    with pytest.raises(ShapeError, match=r"its input has shape \(5,\)"):
        Flatten().output_shape((5,))
