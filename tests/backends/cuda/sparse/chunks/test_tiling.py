"""How a sparse layer is cut for gather_chunks: which shape its blocks have, and that its chunks fit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsenn.backends.cuda.sparse.chunks import tiling
from sparsenn.backends.cuda.sparse.chunks.tiling import (
    BLOCKS,
    COUNTING_BLOCKS,
    HALF_BLOCKS,
    TEAM_BLOCK,
    TILE_ROWS,
    in_slices,
    room,
    shared_tilings,
    stage_tilings,
)
from sparsenn.backends.machine import A100, H200, RTX_4090

layer_shapes = st.tuples(st.integers(0, 20_000), st.integers(0, 20_000), st.floats(0, 1)).map(
    lambda drawn: (drawn[0], drawn[1], int(drawn[0] * drawn[1] * drawn[2]))
)
shapes_of_layers = st.lists(layer_shapes, min_size=1, max_size=5)
machines = st.sampled_from([H200, A100, RTX_4090])


def assert_cut(found, shapes, machine):
    for each, (inputs, outputs, _) in zip(found, shapes, strict=True):
        assert each.groups * each.block.slots >= outputs
        assert 1 <= each.groups <= max(1, outputs)
        assert 1 <= each.chunk <= max(1, inputs)
        assert 2 * each.chunk * each.block.line <= room(machine, each.block)
        assert each.chunk * each.block.line <= each.block.output_places


@given(st.integers(0, 100_000), shapes_of_layers, st.booleans(), machines)
def test_layers_of_a_chain_share_their_tiles(rows, shapes, halves, machine):
    found = shared_tilings(rows, shapes, machine, halves)
    assert_cut(found, shapes, machine)
    assert len({each.block.rows for each in found}) == 1
    assert {each.block for each in found} <= set(HALF_BLOCKS if halves else BLOCKS)


@given(st.integers(0, 100_000), shapes_of_layers, machines)
def test_layers_of_a_stage_share_their_blocks(rows, shapes, machine):
    found = stage_tilings(rows, shapes, machine)
    assert_cut(found, shapes, machine)
    assert len({each.block for each in found}) == 1
    assert found[0].block in COUNTING_BLOCKS


@pytest.mark.parametrize("tile_rows", TILE_ROWS)
def test_every_number_of_rows_has_a_tiling(tile_rows, monkeypatch):
    monkeypatch.setattr(tiling, "TILE_ROWS", (tile_rows,))
    for width, edges in ((300, 900), (5000, 5_000_000)):
        (found,) = shared_tilings(4000, [(width, width, edges)], H200)
        assert found.block.rows == tile_rows


@given(st.integers(0, 100_000), shapes_of_layers, machines, st.data())
def test_teams_are_for_layers_that_all_have_some_and_for_many_rows(rows, shapes, machine, data):
    teams = [data.draw(st.integers(0, max(1, outputs))) for _, outputs, _ in shapes]
    for found in (shared_tilings(rows, shapes, machine, teams=teams), stage_tilings(rows, shapes, machine, teams)):
        if any(each.block.teams for each in found):
            assert all(teams)
            assert {each.block for each in found} == {TEAM_BLOCK}
            for each, count in zip(found, teams, strict=True):
                assert each.block.warps * each.groups >= count >= each.groups
                assert -(-rows // each.block.rows) * each.groups >= machine.multiprocessors
    many = [(4096, 4096, 130_000)] * 2
    assert {each.block for each in shared_tilings(60_000, many, H200, teams=[256, 256])} == {TEAM_BLOCK}
    assert {each.block for each in stage_tilings(60_000, many, H200, [256, 256])} == {TEAM_BLOCK}


def test_rows_go_in_slices_where_blocks_take_more_than_two_rounds():
    shape = 4096, 4096, 839_497
    many, few = (shared_tilings(rows, [shape], H200)[0] for rows in (60_000, 1000))
    assert in_slices(many, 60_000, H200)
    assert not in_slices(few, 1000, H200)


def test_room_is_what_the_device_leaves():
    assert room(H200, BLOCKS[0]) == 227 * 1024 - 256
    assert room(H200, next(block for block in BLOCKS if block.blocks == 2)) == 113 * 1024 - 256
    assert room(H200, HALF_BLOCKS[0]) == 227 * 1024 - 256 - 4 * HALF_BLOCKS[0].rows
