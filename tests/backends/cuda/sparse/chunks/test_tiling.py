"""How a sparse layer is cut for gather_chunks: which tilings there are, and which is taken."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsenn.backends.cuda.sparse.chunks.blocks import BLOCKS, HALF_BLOCKS, room
from sparsenn.backends.cuda.sparse.chunks.tiling import (
    WHOLE_ROUNDS,
    chained_layers,
    estimated_clocks,
    in_slices,
    shared_tilings,
    tiling_for,
    tilings,
)
from sparsenn.backends.machine import A100, H200


@given(
    st.integers(1, 100_000),
    st.integers(0, 20_000),
    st.integers(1, 20_000),
    st.floats(0, 1),
    st.sampled_from([H200, A100]),
)
def test_a_tiling_is_found_for_any_layer(rows, inputs, outputs, density, machine):
    edges = int(inputs * outputs * density)
    tiling = tiling_for(rows, inputs, outputs, edges, machine)
    assert tiling.groups * tiling.block.slots >= outputs
    assert tiling.groups <= outputs
    assert 1 <= tiling.chunk <= max(1, inputs)
    assert 2 * tiling.chunk * tiling.block.line <= room(machine, tiling.block)
    least = min(
        estimated_clocks(other, rows, inputs, outputs, edges, machine)
        for other in tilings(rows, inputs, outputs, edges, machine)
    )
    assert estimated_clocks(tiling, rows, inputs, outputs, edges, machine) == least


def test_few_rows_go_to_all_multiprocessors_and_sparse_layers_to_large_blocks():
    few = tiling_for(1000, 1024, 1024, 52_000, H200)
    assert -(-1000 // few.block.rows) * few.groups > 100
    assert tiling_for(60_000, 16384, 16384, 2_684_000, H200).block.slots >= 200
    assert tiling_for(60_000, 16384, 16384, 53_690_000, H200).block.rows >= 128


@pytest.mark.parametrize("tile_rows", [32, 64, 128, 256])
def test_layers_of_a_network_can_share_their_tiles(tile_rows):
    for width, density in ((300, 0.01), (5000, 0.2)):
        found = tiling_for(4000, width, width, int(width * width * density), H200, tile_rows)
        assert found.block.rows == tile_rows


layer_shapes = st.tuples(st.integers(0, 5000), st.integers(0, 5000), st.floats(0, 1)).map(
    lambda drawn: (drawn[0], drawn[1], int(drawn[0] * drawn[1] * drawn[2]))
)


@given(st.integers(0, 100_000), st.lists(layer_shapes, min_size=1, max_size=5))
def test_layers_of_a_launch_share_the_tiles_that_are_best_for_all(rows, found_shapes):
    chosen = shared_tilings(rows, found_shapes, H200)
    assert len({tiling.block.rows for tiling in chosen}) == 1

    chain = list(zip(found_shapes, chained_layers(len(found_shapes), halves=False), strict=True))

    def clocks(tilings_of_all):
        shapes = ((n, max(1, m), edges, chained) for (n, m, edges), chained in chain)
        pairs = zip(tilings_of_all, shapes, strict=True)
        return sum(estimated_clocks(tiling, rows, *size, H200, chained) for tiling, (*size, chained) in pairs)

    for tile_rows in (32, 64, 128, 256):
        others = [tiling_for(rows, *shape, H200, tile_rows, chained=chained) for shape, chained in chain]
        assert clocks(chosen) <= clocks(others)
    if len(found_shapes) == 1:
        assert clocks(chosen) == clocks([tiling_for(rows, *found_shapes[0], H200)])


@pytest.mark.parametrize(
    ("halves", "chained", "others"),
    [
        (False, [True, False], [[False, False], [True, True]]),
        (True, [False, False], [[True, True]]),
        (True, [True, False, False], [[True, True, True], [False, False, False]]),
    ],
    ids=str,
)
def test_tilings_are_for_what_fills_the_last_round_of_a_layer(halves, chained, others):
    rows, shape = (20_000, (1024, 1024, 104_858)) if halves else (4000, (4096, 4096, 300_000))
    shapes = [shape] * len(chained)
    found = shared_tilings(rows, shapes, H200, halves=halves)
    assert found == shared_tilings(rows, shapes, H200, halves=halves, chained=chained)
    for other in others:
        assert found != shared_tilings(rows, shapes, H200, halves=halves, chained=other)


@given(st.integers(1, 100_000), layer_shapes)
def test_layers_of_a_chain_need_no_whole_rounds(rows, shape):
    inputs, outputs, edges = shape
    size = rows, inputs, max(1, outputs), edges, H200
    for tiling in tilings(*size):
        alone, among = (estimated_clocks(tiling, *size, chained) for chained in (False, True))
        if in_slices(tiling, rows, H200):
            assert alone * WHOLE_ROUNDS / (WHOLE_ROUNDS + 1) < among <= alone * (1 + 1e-12)
        else:
            assert among == alone


def test_a_layer_alone_may_take_other_tiles_than_among_others():
    narrow, wide = (16384, 16384, 2_684_000), (16384, 16384, 53_690_000)
    alone = [shared_tilings(60_000, [shape], H200)[0].block.rows for shape in (narrow, wide)]
    together = shared_tilings(60_000, [narrow, *[wide] * 9], H200)
    assert alone[0] != alone[1]
    assert {tiling.block.rows for tiling in together} == {alone[1]}


def test_room_is_what_the_device_leaves():
    assert room(H200, BLOCKS[0]) == 227 * 1024 - 256
    assert room(H200, next(block for block in BLOCKS if block.blocks == 2)) == 113 * 1024 - 256
    assert room(H200, HALF_BLOCKS[0]) == 227 * 1024 - 256 - 4 * HALF_BLOCKS[0].rows
