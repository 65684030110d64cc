"""How weights are laid out for gather_chunks, checked by reading them back. No GPU is needed."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import csc_matrices, shapes

from sparsenn.backends.cuda.sparse.chunks.blocks import BlockShape, room
from sparsenn.backends.cuda.sparse.chunks.tiling import Tiling
from sparsenn.backends.cuda.sparse.chunks.weights import chunk_weights
from sparsenn.backends.machine import H200
from sparsenn.formats import CSC, from_dense

NONE = 63
"""What an edge has in place of an output where rows are halves."""

SMALL_BLOCKS = (
    BlockShape(1, 4, 3, 1),
    BlockShape(2, 2, 2, 1),
    BlockShape(8, 4, 1, 2),
    BlockShape(2, 6, 2, 1),
    BlockShape(4, 4, 3, 1, halves=True),
    BlockShape(8, 6, 1, 2, halves=True),
)


def csc_of(matrix):
    return CSC.from_scipy(from_dense(matrix).to_scipy())


def lines_of(chunked, number):
    """The inputs of a chunk, as its runs say; each line is written once."""
    runs = chunked.runs[slice(*chunked.run_starts[number:][:2])]
    lines = np.full(runs[0, 3] if len(runs) else 0, -1)
    for first, place, count, every in runs:
        assert every == lines.size
        assert count > 0
        assert (lines[place : place + count] == -1).all()
        lines[place : place + count] = np.arange(first, first + count)
    assert (np.diff(lines) > 0).all()
    assert (lines >= 0).all()
    return lines


def edges_of(chunked, number, warp):
    """A warp's edges in a record, as the kernel goes through them: outputs of the warp, lines of the chunk, weights."""
    block = chunked.tiling.block
    record = chunked.records[slice(*(4 * chunked.starts[number:][:2]))].view(np.uint32)
    at, behind = record[warp] // 4, block.outputs * block.output_places
    assert record[warp] % 16 == 0
    if block.halves:
        return half_edges_of(record[at:], block)
    places, weights = [], []
    while not places or max(places[-2:]) < behind:
        pair, at = record[at : at + 4], at + 4
        assert pair.size == 4
        weights.extend(pair[:2].view(np.float32))
        places.extend(pair[2:].tolist())
    count = next(number for number, place in enumerate(places) if place >= behind)
    outputs, lines = np.divmod(np.array(places[:count], int), block.output_places)
    assert (lines % block.line == 0).all()
    return outputs, lines // block.line, np.array(weights[:count], np.float32)


def half_edges_of(words, block):
    """The same where rows are halves: each word has a weight, scaled, its output and its line."""
    count = np.flatnonzero(words >> 18 & 63 == NONE)[0]
    rest = words[count : count // 4 * 4 + 4]
    assert len(rest) == 4 - count % 4
    assert (rest == NONE << 18).all()
    words = words[:count]
    lines = words & 0x3FF00
    assert (lines % block.line == 0).all()
    weights = (words & 0xFF | words >> 24 << 8).astype(np.uint16).view(np.float16)
    return (words >> 18 & 63).astype(int), lines // block.line, weights.astype(np.float32)


def read_back(chunked):
    """Walk the records as the kernel does; return the dense weights and the bias, and check what it relies on."""
    block, chunk, line = chunked.tiling.block, chunked.tiling.chunk, chunked.tiling.block.line
    inputs, outputs = chunked.shape
    weights, bias = np.zeros((inputs, outputs), np.float32), np.full(outputs, np.nan, np.float32)
    for group in range(chunked.tiling.groups):
        slots = chunked.slots[group * block.slots : (group + 1) * block.slots]
        for number in range(group * chunked.chunks, (group + 1) * chunked.chunks):
            lines = lines_of(chunked, number)
            assert lines.size <= chunk
            start, stop = chunked.starts[number:][:2]
            assert chunk * line + 16 * (stop - start) <= chunked.stage_bytes
            for warp in range(block.warps):
                of_warp, place, found = edges_of(chunked, number, warp)
                assert (np.diff(of_warp * lines.size + place) > 0).all()
                assert (place < lines.size).all()
                output = slots[warp * block.outputs + of_warp, 0]
                assert (weights[lines[place], output] == 0).all()
                weights[lines[place], output] = found
        for output, *told in slots:
            if output >= 0:
                assert np.isnan(bias[output])
                bias[output], *scale = np.array(told, np.int32).view(np.float32)
                weights[:, output] *= np.ldexp(scale[0], -14) if block.halves else 1
    return weights, bias


def as_laid_out(weights, block):
    """The weights that the kernel multiplies by: 11 bits of them where rows are halves."""
    dense = weights.to_scipy().toarray()
    if not block.halves:
        return dense
    exponents = np.frexp(np.abs(dense).max(axis=0, initial=0))[1]
    halves = np.ldexp(dense.astype(np.float64), 14 - exponents).astype(np.float16)
    return np.ldexp(halves.astype(np.float64), exponents - 14).astype(np.float32)


@given(
    csc_matrices() | shapes(1).flatmap(csc_matrices),
    st.sampled_from(SMALL_BLOCKS),
    st.integers(1, 50),
    st.integers(0, 3),
)
def test_what_is_laid_out_reads_back(weights, block, chunk, more):
    bias = np.arange(weights.shape[1], dtype=np.float32) - 3
    groups = max(1, -(-weights.shape[1] // block.slots)) + more
    chunked = chunk_weights(weights, bias, Tiling(block, groups, chunk), H200)
    found, found_bias = read_back(chunked)
    assert np.array_equal(found, as_laid_out(weights, block))
    assert np.array_equal(found_bias, bias)
    assert chunked.tiling == Tiling(block, groups, chunk)
    assert 2 <= chunked.stages <= 8
    assert chunked.stages * chunked.stage_bytes <= room(H200, block)
    assert chunked.stage_bytes % 128 == 0


def band(inputs, outputs, width):
    """Weights of which each output has `width` neighbours, further down from output to output."""
    first = np.arange(outputs) * (inputs - width) // max(1, outputs - 1)
    place = np.arange(inputs)[:, None]
    return np.where((first <= place) & (place < first + width), place + 1, 0).astype(np.float32)


@pytest.mark.parametrize("holes", [False, True])
def test_groups_bring_in_what_they_read(holes):
    weights = band(700, 60, 40)
    weights[300:330] *= not holes
    weights[:, 10] = 0
    block = BlockShape(8, 4, 3, 1)
    chunked = chunk_weights(csc_of(weights), np.zeros(60, np.float32), Tiling(block, 5, 50), H200)
    assert np.array_equal(read_back(chunked)[0], weights)
    lines = [lines_of(chunked, number) for number in range(5 * chunked.chunks)]
    assert sum(line.size for line in lines) < 5 * 700 / 3
    assert (chunked.runs[:, 2] > 10).any()
    for group in range(5):
        own = np.concatenate(lines[group * chunked.chunks :][: chunked.chunks])
        outputs = chunked.slots[group * block.slots : (group + 1) * block.slots, 0]
        assert set(own) == set(np.flatnonzero(weights[:, outputs[outputs >= 0]].any(axis=1)))


def test_inputs_far_apart_are_brought_in_with_those_between():
    weights = np.zeros((64, 12), np.float32)
    weights[::4] = 1
    chunked = chunk_weights(csc_of(weights), np.zeros(12, np.float32), Tiling(SMALL_BLOCKS[0], 1, 32), H200)
    assert chunked.runs.tolist() == [[0, 0, 32, 32], [32, 0, 32, 32]]
    assert np.array_equal(read_back(chunked)[0], weights)


def test_reading_back_notices_a_lost_edge():
    weights = csc_of(np.eye(5, dtype=np.float32))
    chunked = chunk_weights(weights, np.zeros(5, np.float32), Tiling(SMALL_BLOCKS[0], 1, 2), H200)
    chunked.records[chunked.records == np.float32(1).view(np.int32)] = 0
    assert not np.array_equal(read_back(chunked)[0], np.eye(5))


def test_a_chunk_whose_edges_do_not_fit_is_made_smaller(rng):
    weights = csc_of(rng.random((200, 120), dtype=np.float32) + 1)
    tiling = Tiling(BlockShape(8, 8, 15, 1), 1, 200)
    tight = replace(H200, block_bytes=150 << 10)
    chunked = chunk_weights(weights, np.zeros(120, np.float32), tiling, tight)
    assert chunked.tiling.chunk < 50
    assert chunked.stages >= 2
    assert np.array_equal(read_back(chunked)[0], weights.to_scipy().toarray())


def test_warps_of_a_group_get_as_many_edges(rng):
    degrees = np.sort((400 * rng.random(90) ** 4).astype(int))
    mask = np.arange(400)[:, None] < rng.permutation(degrees)
    block = BlockShape(1, 8, 4, 1)
    chunked = chunk_weights(csc_of(mask.astype(np.float32)), np.zeros(90, np.float32), Tiling(block, 3, 400), H200)
    assert chunked.chunks == 1
    for group in range(3):
        edges = [edges_of(chunked, group, warp)[0].size for warp in range(block.warps)]
        largest = degrees[30 * (2 - group) : 30 * (3 - group)]
        assert np.ptp(edges) <= np.ptp(largest) + 1
        outputs = chunked.slots[group * block.slots : (group + 1) * block.slots, 0]
        assert sorted(mask[:, outputs[outputs >= 0]].sum(axis=0)) == sorted(largest)
