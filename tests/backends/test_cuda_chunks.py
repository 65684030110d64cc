"""gather_chunks: how weights are laid out, checked without a GPU by reading them back; and the kernel, on one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import EPSILON
from strategies import csc_matrices, csr_matrices, shapes

from sparsenn import backends
from sparsenn.backends.cuda.sparse.chunks import (
    TILE_ROWS,
    chunk_weights,
    from_tiles,
    gather_chunks,
    shared_tilings,
    to_tiles,
)
from sparsenn.backends.cuda.sparse.rows import count_tiles, take_from_tiles, tiles_from_csr
from sparsenn.backends.cuda.sparse.tiling import (
    BLOCKS,
    BlockShape,
    Limits,
    Tiling,
    device_limits,
    estimated_clocks,
    tiling_for,
    tilings,
)
from sparsenn.formats import CSC, from_dense
from sparsenn.layers import Identity, ReLU, Sigmoid, Tanh

LIMITS = Limits()
SMALL_BLOCKS = (BlockShape(1, 4, 3, 1), BlockShape(2, 2, 2, 1), BlockShape(8, 4, 1, 2))


def csc_of(matrix):
    return CSC.from_scipy(from_dense(matrix).to_scipy())


def read_back(chunked):
    """Walk the records as the kernel does; return the dense weights and the bias, and check what it relies on."""
    block, chunk, line = chunked.tiling.block, chunked.tiling.chunk, chunked.tiling.block.line
    inputs, outputs = chunked.shape
    chunks = -(-inputs // chunk)
    weights, bias = np.zeros((inputs, outputs), np.float32), np.full(outputs, np.nan, np.float32)
    for group in range(chunked.tiling.groups):
        for number in range(chunks):
            start, stop = chunked.starts[group * chunks + number :][:2]
            record = chunked.records[4 * start : 4 * stop]
            assert (chunk + 1) * line + record.nbytes + 16 <= chunked.stage_bytes
            ends = record[3 : 4 + block.slots]
            assert ends[0] == 4 * (4 + block.slots)
            assert ends[-1] == record.nbytes
            for slot in range(block.slots):
                first, last = ends[slot : slot + 2]
                assert first % 16 == last % 16 == 0
                edges = record[first // 4 : last // 4].reshape(-1, 2)
                output = chunked.slots[group * block.slots + slot, 0]
                here = edges[:, 0] < chunk * line
                assert (edges[~here] == [chunk * line, 0]).all()
                assert not here.size or here[:-1].all()
                place = number * chunk + edges[here, 0] // line
                assert (edges[:, 0] % line == 0).all()
                assert (np.diff(place) > 0).all()
                if place.size:
                    weights[place, output] = edges[here, 1].view(np.float32)
        for output, bits in chunked.slots[group * block.slots : (group + 1) * block.slots]:
            if output >= 0:
                assert np.isnan(bias[output])
                bias[output] = np.int32(bits).view(np.float32)
    return weights, bias


@given(
    csc_matrices() | shapes(1).flatmap(csc_matrices),
    st.sampled_from(SMALL_BLOCKS),
    st.integers(1, 50),
    st.integers(0, 3),
)
def test_what_is_laid_out_reads_back(weights, block, chunk, more):
    bias = np.arange(weights.shape[1], dtype=np.float32) - 3
    groups = max(1, -(-weights.shape[1] // block.slots)) + more
    chunked = chunk_weights(weights, bias, Tiling(block, groups, chunk), LIMITS)
    found, found_bias = read_back(chunked)
    assert np.array_equal(found, weights.to_scipy().toarray())
    assert np.array_equal(found_bias, bias)
    assert chunked.tiling == Tiling(block, groups, chunk)
    assert 2 <= chunked.stages <= 8
    assert chunked.stages * chunked.stage_bytes <= LIMITS.room(block)
    assert chunked.stage_bytes % 128 == 0


def test_reading_back_notices_a_lost_edge():
    weights = csc_of(np.eye(5, dtype=np.float32))
    chunked = chunk_weights(weights, np.zeros(5, np.float32), Tiling(SMALL_BLOCKS[0], 1, 2), LIMITS)
    chunked.records[chunked.records == np.float32(1).view(np.int32)] = 0
    assert not np.array_equal(read_back(chunked)[0], np.eye(5))


def test_a_chunk_whose_edges_do_not_fit_is_made_smaller(rng):
    weights = csc_of(rng.random((200, 120), dtype=np.float32) + 1)
    tiling = Tiling(BLOCKS[2], 1, 200)
    tight = Limits(block_bytes=150 << 10)
    chunked = chunk_weights(weights, np.zeros(120, np.float32), tiling, tight)
    assert chunked.tiling.chunk < 50
    assert chunked.stages >= 2
    assert np.array_equal(read_back(chunked)[0], weights.to_scipy().toarray())


def test_warps_of_a_group_get_as_many_edges(rng):
    degrees = np.sort((400 * rng.random(90) ** 4).astype(int))
    mask = np.arange(400)[:, None] < rng.permutation(degrees)
    block = BlockShape(1, 8, 4, 1)
    chunked = chunk_weights(csc_of(mask.astype(np.float32)), np.zeros(90, np.float32), Tiling(block, 3, 400), LIMITS)
    for group in range(3):
        record = chunked.records[4 * chunked.starts[group] :]
        ends = record[3 : 4 + block.slots : block.outputs]
        pairs = np.diff(ends) // 16
        largest = degrees[30 * (2 - group) : 30 * (3 - group)]
        assert np.ptp(pairs) <= (np.ptp(largest) + 1) // 2 + block.outputs
        outputs = chunked.slots[group * block.slots : (group + 1) * block.slots, 0]
        assert sorted(mask[:, outputs[outputs >= 0]].sum(axis=0)) == sorted(largest)


@given(
    st.integers(1, 100_000),
    st.integers(0, 20_000),
    st.integers(1, 20_000),
    st.floats(0, 1),
    st.sampled_from([LIMITS, Limits(108, 163 << 10, 164 << 10)]),
)
def test_a_tiling_is_found_for_any_layer(rows, inputs, outputs, density, limits):
    edges = int(inputs * outputs * density)
    tiling = tiling_for(rows, inputs, outputs, edges, limits)
    assert tiling.groups * tiling.block.slots >= outputs
    assert tiling.groups <= outputs
    assert 1 <= tiling.chunk <= max(1, inputs)
    assert 2 * (tiling.chunk + 1) * tiling.block.line <= limits.room(tiling.block)
    least = min(
        estimated_clocks(other, rows, inputs, outputs, edges, limits)
        for other in tilings(rows, inputs, outputs, edges, limits)
    )
    assert estimated_clocks(tiling, rows, inputs, outputs, edges, limits) == least


def test_few_rows_go_to_all_multiprocessors_and_sparse_layers_to_large_blocks():
    few = tiling_for(1000, 1024, 1024, 52_000, LIMITS)
    assert -(-1000 // few.block.rows) * few.groups > 100
    assert tiling_for(60_000, 16384, 16384, 2_684_000, LIMITS).block.slots >= 240
    assert tiling_for(60_000, 16384, 16384, 53_690_000, LIMITS).block.rows >= 128


@pytest.mark.parametrize("tile_rows", [32, 64, 128, 256])
def test_layers_of_a_network_can_share_their_tiles(tile_rows):
    for width, density in ((300, 0.01), (5000, 0.2)):
        found = tiling_for(4000, width, width, int(width * width * density), LIMITS, tile_rows)
        assert found.block.rows == tile_rows


layer_shapes = st.tuples(st.integers(0, 5000), st.integers(0, 5000), st.floats(0, 1)).map(
    lambda drawn: (drawn[0], drawn[1], int(drawn[0] * drawn[1] * drawn[2]))
)


@given(st.integers(0, 100_000), st.lists(layer_shapes, min_size=1, max_size=5))
def test_layers_of_a_launch_share_the_tiles_that_are_best_for_all(rows, found_shapes):
    chosen = shared_tilings(rows, found_shapes, LIMITS)
    assert len({tiling.block.rows for tiling in chosen}) == 1

    def clocks(tilings_of_all):
        pairs = zip(tilings_of_all, found_shapes, strict=True)
        return sum(estimated_clocks(tiling, rows, n, max(1, m), edges, LIMITS) for tiling, (n, m, edges) in pairs)

    for tile_rows in (32, 64, 128, 256):
        others = [tiling_for(rows, *shape, LIMITS, tile_rows) for shape in found_shapes]
        assert clocks(chosen) <= clocks(others)
    if len(found_shapes) == 1:
        assert clocks(chosen) == clocks([tiling_for(rows, *found_shapes[0], LIMITS)])


def test_a_layer_alone_may_take_other_tiles_than_among_others():
    narrow, wide = (16384, 16384, 2_684_000), (16384, 16384, 53_690_000)
    alone = [shared_tilings(60_000, [shape], LIMITS)[0].block.rows for shape in (narrow, wide)]
    together = shared_tilings(60_000, [narrow, *[wide] * 9], LIMITS)
    assert alone[0] != alone[1]
    assert {tiling.block.rows for tiling in together} == {alone[1]}


def test_the_rung_fuses_layers():
    assert backends.variant("spmspm", "chunks", "cuda").fuses


def test_room_is_what_the_device_leaves():
    assert LIMITS.room(BLOCKS[0]) == 227 * 1024 - 128
    assert LIMITS.room(BLOCKS[4]) == 113 * 1024 - 128


# ---- On a GPU ---------------------------------------------------------------------------------------------------

ACTIVATIONS = {0: ReLU(0.75), 1: Sigmoid(), 2: Tanh(), 3: Identity()}
AWKWARD = [
    (1, 1, 1, 1.0), (33, 1, 7, 0.5), (130, 77, 1, 0.3), (257, 300, 259, 0.05), (1000, 515, 130, 0.2),
    (64, 40, 300, 0.0), (5, 0, 9, 0.0), (0, 20, 30, 0.5),
]  # fmt: skip


def place(weights):
    import cupy as cp

    arrays = (cp.asarray(array) for array in (weights.indptr, weights.indices, weights.values))
    return CSC(weights.shape, *arrays)


def problem(rng, rows, inputs, outputs, density):
    """Dense rows, weights with empty columns, and a bias of both signs."""
    matrix = rng.normal(size=(inputs, outputs)) * (rng.random((inputs, outputs)) < density)
    matrix[:, rng.random(outputs) < 0.1] = 0
    bias = rng.normal(size=outputs).astype(np.float32)
    return rng.normal(size=(rows, inputs)).astype(np.float32), matrix.astype(np.float32), bias


def run(features, weights, bias, block, activation, groups=None, chunk=None):
    """Run the kernel; returns the outputs and which rows have a non-zero, on the host."""
    import cupy as cp

    rows, (inputs, outputs) = features.shape[0], weights.shape
    least = max(1, -(-outputs // block.slots))
    tiling = Tiling(block, max(least, groups or least), chunk or max(1, min(inputs, 50)))
    limits = device_limits(cp.cuda.runtime.getDevice())
    chunked = chunk_weights(place(csc_of(weights)), cp.asarray(bias), tiling, limits)
    tiles = to_tiles(cp.asarray(features), block)
    clip = getattr(ACTIVATIONS[activation], "clip", None)
    alive = cp.zeros(tiles.shape[0] * block.rows, np.uint8)
    found = gather_chunks(chunked, np.int32(activation), np.float32(np.inf if clip is None else clip), tiles, alive)
    return cp.asnumpy(from_tiles(found, rows, block)), cp.asnumpy(alive[:rows]).astype(bool)


@pytest.mark.gpu
@pytest.mark.parametrize("block", BLOCKS, ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_kernel_computes_the_layer(block, activation, rng):
    for rows, inputs, outputs, density in AWKWARD:
        features, weights, bias = problem(rng, rows, inputs, outputs, density)
        found, alive = run(features, weights, bias, block, activation)
        wide = features.astype(np.float64), weights.astype(np.float64)
        expected = ACTIVATIONS[activation](wide[0] @ wide[1] + bias)
        bound = (inputs + 2) * EPSILON * (np.abs(wide[0]) @ np.abs(wide[1]) + np.abs(bias)) + 4 * EPSILON
        assert found.shape == expected.shape
        assert (np.abs(found - expected) <= bound).all(), (rows, inputs, outputs)
        assert np.array_equal(alive, found.any(axis=1))


@pytest.mark.gpu
def test_bits_are_the_same_in_every_run_and_for_every_tiling(rng):
    features, weights, bias = problem(rng, 300, 400, 500, 0.1)
    expected, _ = run(features, weights, bias, BLOCKS[0], 0)
    for block in BLOCKS:
        for more, chunk in ((0, 50), (7, 13), (0, 400)):
            found, _ = run(features, weights, bias, block, 0, -(-500 // block.slots) + more, chunk)
            assert np.array_equal(found.view(np.int32), expected.view(np.int32))


@pytest.mark.gpu
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_infinity_and_nan_reach_only_the_outputs_that_read_them(activation, rng):
    features, weights, bias = problem(rng, 70, 60, 50, 0.2)
    features[3, 7], features[40, 11], features[69, 59] = np.inf, np.nan, -np.inf
    for block in BLOCKS:
        found, _ = run(features, weights, bias, block, activation)
        for row, column in ((3, 7), (40, 11), (69, 59)):
            reads = weights[column] != 0
            clean = np.where(np.arange(60) == column, 0, features[row])
            expected = ACTIVATIONS[activation](clean.astype(np.float64) @ weights + bias)
            np.testing.assert_allclose(found[row, ~reads], expected[~reads], rtol=1e-5, atol=1e-5)
            if column == 11:
                assert np.isnan(found[row, reads]).all()
            elif activation == 3:
                assert np.array_equal(found[row, reads], np.sign(weights[column, reads]) * features[row, column])


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(1, 1), (31, 33), (257, 65), (0, 5), (5, 0)])
def test_tiles_and_back(shape, rng):
    import cupy as cp

    matrix = rng.normal(size=shape).astype(np.float32)
    for block in BLOCKS:
        tiles = to_tiles(cp.asarray(matrix), block)
        whole = cp.asnumpy(tiles).transpose(0, 2, 1).reshape(tiles.shape[0] * block.rows, shape[1])
        assert np.array_equal(whole[: shape[0]], matrix)
        assert not whole[shape[0] :].any()
        assert np.array_equal(cp.asnumpy(from_tiles(tiles, shape[0], block)), matrix)


@pytest.mark.gpu
@given(matrix=csr_matrices(), chosen=st.data(), side=st.sampled_from(TILE_ROWS))
def test_sparse_rows_into_tiles_and_chosen_ones_out(matrix, chosen, side):
    import cupy as cp

    rows = matrix.shape[0]
    placed = backends.backend_for("cuda").place(matrix)
    tiles = tiles_from_csr(placed, side)
    whole = cp.asnumpy(tiles).transpose(0, 2, 1).reshape(tiles.shape[0] * side, matrix.shape[1])
    full = matrix.to_scipy().toarray()
    assert np.array_equal(whole[:rows], full)
    assert not whole[rows:].any()
    kept = np.flatnonzero(chosen.draw(st.lists(st.booleans(), min_size=rows, max_size=rows)))
    assert np.array_equal(cp.asnumpy(take_from_tiles(tiles, cp.asarray(kept, dtype=np.int64))), full[kept])


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(1, 1), (700, 70), (1025, 33), (300, 1000)])
def test_rows_far_apart_are_taken_out_of_tiles(shape, rng):
    import cupy as cp

    full = rng.normal(size=shape).astype(np.float32)
    kept = np.flatnonzero(rng.random(shape[0]) < 0.2)
    for block in BLOCKS:
        found = take_from_tiles(to_tiles(cp.asarray(full), block), cp.asarray(kept, dtype=np.int64))
        assert np.array_equal(cp.asnumpy(found), full[kept])


@pytest.mark.gpu
@pytest.mark.parametrize("side", TILE_ROWS)
@pytest.mark.parametrize("shape", [(1, 1), (31, 600), (256, 3), (700, 1500)])
def test_what_is_counted_in_tiles(shape, side, rng):
    import cupy as cp

    rows, width = shape
    count = -(-rows // side)
    tiles = rng.normal(size=(count, width, side)).astype(np.float32)  # rows that only fill up are not zero, either
    tiles[rng.random(tiles.shape) < 0.6] = 0
    tiles[:, :, ::5] = 0
    tiles[rng.random(tiles.shape) < 0.01] = np.nan
    there = tiles.transpose(0, 2, 1).reshape(count * side, width) != 0
    copies, degrees = rng.integers(1, 1 << 33, width), rng.integers(0, 1 << 33, width)
    multiplicity = rng.integers(1, 1000, rows)
    placed = (cp.asarray(item) for item in (tiles, there.any(axis=1).astype(np.uint8), multiplicity, copies))
    arguments = tuple(placed)
    counters = cp.ones((3, 3), np.int64)
    count_tiles(*arguments, cp.asarray(degrees), counters)
    count_tiles(*arguments, None, counters[2:])
    inside = there[:rows]
    active, nonzeros = multiplicity[inside.any(axis=1)].sum(), multiplicity @ (inside @ copies)
    expected = [[active, nonzeros, 0], [0, 0, (inside @ degrees).sum()], [active, nonzeros, 0]]
    assert np.array_equal(counters.get() - 1, expected)
