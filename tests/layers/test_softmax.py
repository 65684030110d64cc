import pytest

from sparsenn.errors import ShapeError
from sparsenn.layers import Softmax


@pytest.mark.parametrize("shape", [(5, 7), (0, 7), (5, 3, 2, 4)])
def test_shapes_stay(shape):
    assert Softmax().output_shape(shape) == shape


def test_zeros_do_not_stay_zeros():
    assert not Softmax().keeps_zero_rows


def test_a_batch_alone_is_refused():
    with pytest.raises(ShapeError, match=r"its input has shape \(5,\)"):
        Softmax().output_shape((5,))
