"""The CUDA variants by name, each operation's from plain to fast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sparsenn.backends.base import Variant, register
from sparsenn.backends.cuda.availability import ANY_GPU
from sparsenn.backends.cuda.sparse import conversion, resident, spmspm
from sparsenn.backends.cuda.sparse.estimates import chunks_seconds, resident_seconds

__all__ = ["register_all"]

_DISTINCT = "no index twice in a row"

Rung = tuple[str, Callable[..., Any], str]

_SPMSPM: tuple[Rung, ...] = (
    ("naive", spmspm.launch_naive, "a thread an output, by merge-intersection, an atomic addition a non-zero"),
    ("warp_vote", spmspm.launch_warp_vote, "as naive; a warp counts its non-zeros by vote"),
    ("coarsened", spmspm.launch_coarsened, "as naive; a thread computes many rows of one column"),
    ("privatized", spmspm.launch_privatized, "as naive; a block collects in shared memory and commits once"),
    ("warp_vote_coarsened", spmspm.launch_warp_vote_coarsened, "warp_vote and coarsened together"),
    ("warp_vote_privatized", spmspm.launch_warp_vote_privatized, "warp_vote and privatized together"),
    ("row_per_warp", spmspm.launch_row_per_warp, "a warp a row: only non-zeros, scattered into sums in shared memory"),
    ("tile", spmspm.launch_tile, "32 rows along the lanes, gathering from a dense tile in shared memory"),
)
_CONVERSION: dict[str, tuple[Rung, ...]] = {
    "histogram": (
        ("atomic", conversion.histogram_atomic, "a thread an entry, an atomic addition each"),
        ("warp_match", conversion.histogram_warp_match, "equal keys of a warp are counted together"),
    ),
    "scan": (
        ("single_block", conversion.scan_single_block, "one block, tile after tile"),
        ("two_level", conversion.scan_two_level, "every block sums, then scans its tile"),
    ),
    "binning": (
        ("atomic", conversion.binning_atomic, "a thread an entry, which takes its place by an atomic addition"),
        ("warp_match", conversion.binning_warp_match, "equal keys of a warp take their places together"),
    ),
    "sort": (
        ("exchange", conversion.sort_exchange, "a thread a row, exchanging neighbours"),
        ("bitmap_rank", conversion.sort_bitmap_rank, "a block a row, ranks counted in a bitmap"),
    ),
}


def register_all() -> None:
    """Register every variant; CuPy is not needed for that."""
    _register_rungs()
    register(
        Variant(
            operation="spmspm",
            name="chunks",
            device="cuda",
            summary="inputs streamed through shared memory in chunks, many outputs' sums in registers",
            launch=spmspm.launch_chunks,
            needs=(ANY_GPU,),
            fuses=True,
            seconds=chunks_seconds,
        )
    )
    register(
        Variant(
            operation="spmspm",
            name="resident",
            device="cuda",
            summary="all layers in one graph, rows kept in shared memory, dropped and grouped on the device",
            launch=resident.launch_resident,
            needs=(ANY_GPU, "rows that fit into shared memory"),
            fuses=True,
            groups_rows=True,
            why_not=resident.why_not,
            seconds=resident_seconds,
        )
    )


def _register_rungs() -> None:
    for operation, rungs in {"spmspm": _SPMSPM, **_CONVERSION}.items():
        for name, launch, summary in rungs:
            needs = (ANY_GPU, _DISTINCT) if name == "bitmap_rank" else (ANY_GPU,)
            register(Variant(operation, name, "cuda", summary, launch, needs))
