"""The ladders of the conversion steps: two rungs each, the second of which the engine converts by."""

import pytest

from sparsenn.backends.cuda.sparse import conversion
from sparsenn.studies.ladder import rungs_of

STEPS = {
    "histogram": (["atomic", "warp_match"], conversion.histogram),
    "scan": (["single_block", "two_level"], conversion.scan),
    "binning": (["atomic", "warp_match"], conversion.binning),
    "sort": (["exchange", "bitmap_rank"], conversion.sort),
}


@pytest.mark.parametrize("operation", STEPS)
def test_the_last_rung_is_the_engine_s(operation):
    names, launch = STEPS[operation]
    rungs = rungs_of(operation, "cuda")
    assert [rung.name for rung in rungs] == names
    assert rungs[-1].launch is launch
    assert not any(rung.auto for rung in rungs)
