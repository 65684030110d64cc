"""The ladder of spmspm: its rungs in order, on each device, and what can be varied."""

from sparsenn.backends import automatic, kernels
from sparsenn.studies.ladder import rungs_of
from sparsenn.studies.spmspm.cuda import ROWS_PER_THREAD

FEW_ROWS = ("few_rows", "few_rows_float16")
IN_HALVES = ("two_of_four_float32", "two_of_four_tf32", "two_of_four_float16", "chunks_tf32", "chunks_float16")


def names(found):
    return [kernel.name for kernel in found]


def test_rungs_are_told_from_plain_to_fast():
    assert names(rungs_of("spmspm", "cpu")) == ["sequential", "scipy", "scatter", "panel"]
    assert names(rungs_of("spmspm", "cuda")) == [
        *("naive", "warp_vote", "coarsened", "privatized", "warp_vote_coarsened", "warp_vote_privatized"),
        *("row_per_warp", "tile", "chunks"),
    ]
    assert names(rungs_of("spmspm", "reference")) == ["reference"]


def test_rungs_are_all_kernels_but_one_that_takes_all_layers_at_once():
    for device in ("cpu", "cuda", "reference"):
        others = set(kernels("spmspm", device)) - set(rungs_of("spmspm", device))
        all_at_once = ("rows", *FEW_ROWS, *IN_HALVES)
        assert all(kernel.groups_rows or kernel.name in all_at_once for kernel in others), device


def test_no_rung_of_the_study_alone_is_taken_unasked():
    assert names(automatic("spmspm", "cuda")) == ["resident", "chunks", *FEW_ROWS, *IN_HALVES]
    assert names(automatic("spmspm", "cpu")) == ["panel", "rows"]


def test_a_sweep_varies_how_far_threads_are_coarsened():
    values = [f"rows a thread {value}" for value in sorted(ROWS_PER_THREAD)]
    varied = [f"{name}, {value}" for name in ("coarsened", "warp_vote_coarsened") for value in values]
    assert names(rungs_of("spmspm", "cuda", sweep=True)) == ["naive", *varied]
