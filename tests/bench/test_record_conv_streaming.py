"""What the record of streamed convolutions makes of measured times, and that it looks at the outputs."""

import numpy as np
import pytest
import record_conv_streaming as record
from convolutions import reference_conv2d


def test_a_row_tells_the_median_and_how_far_it_is_from_the_floor():
    row = record.row("in pieces", "pinned", [0.4, 0.1, 0.2, 0.3, 0.9], 0.15, 0.05)
    assert (row["way"], row["memory"]) == ("in pieces", "pinned")
    assert row["milliseconds"] == pytest.approx(300)
    assert row["floor_milliseconds"] == pytest.approx(150)
    assert row["floor_share"] == pytest.approx(0.5)
    assert row["kernel_milliseconds"] == pytest.approx(50)
    assert {key for key, *_ in record.COLUMNS} == {"layer", *row}


@pytest.mark.parametrize("number", [0, 2, 4])
def test_wrong_outputs_stop_the_record(number, rng):
    layer = record.random_layer((2, 9, 10), 3)
    images = rng.random((5, 2, 9, 10), dtype=np.float32)
    outputs = reference_conv2d(images, layer.weights, layer.bias_vector(), layer.activation).astype(np.float32)
    record.check(layer, images, outputs)
    for wrong in (np.nan, outputs.max() * 1.001):
        spoilt = outputs.copy()
        spoilt[number, 1, 2, 3] = wrong
        with pytest.raises(SystemExit, match=f"image {number}"):
            record.check(layer, images, spoilt)
