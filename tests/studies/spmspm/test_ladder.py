"""The ladder of spmspm: its rungs in order, on each device, and what can be varied."""

from sparsenn.studies.ladder import rungs_of


def names(found):
    return [kernel.name for kernel in found]


def test_rungs_are_told_from_plain_to_fast():
    assert names(rungs_of("spmspm", "cpu")) == ["sequential", "scipy", "scatter", "panel"]
    assert names(rungs_of("spmspm", "cuda")) == [
        *("naive", "warp_vote", "coarsened", "privatized", "warp_vote_coarsened", "warp_vote_privatized"),
        *("row_per_warp", "tile", "chunks"),
    ]
    assert names(rungs_of("spmspm", "reference")) == ["reference"]
