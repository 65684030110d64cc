"""How weights are laid out for gather_chunks, checked by reading them back. No GPU is needed."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import csc_matrices, shapes

from sparsenn.backends.cuda.sparse.chunk_blocks import (
    BLOCKS,
    ENDS,
    MOST_RECORD_BYTES,
    BlockShape,
    first_words,
    header_words,
    room,
)
from sparsenn.backends.cuda.sparse.chunked_weights import chunk_weights
from sparsenn.backends.cuda.sparse.tiling import Tiling, tiling_for
from sparsenn.backends.machine import H200
from sparsenn.formats import CSC, from_dense

SMALL_BLOCKS = (
    BlockShape(1, 4, 3, 1),
    BlockShape(2, 2, 2, 1),
    BlockShape(8, 4, 1, 2),
    BlockShape(1, 4, 3, 1, 1),
    BlockShape(2, 6, 2, 1, 1),
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


def read_back(chunked):
    """Walk the records as the kernel does; return the dense weights and the bias, and check what it relies on."""
    block, chunk, line = chunked.tiling.block, chunked.tiling.chunk, chunked.tiling.block.line
    inputs, outputs = chunked.shape
    weights, bias = np.zeros((inputs, outputs), np.float32), np.full(outputs, np.nan, np.float32)
    for group in range(chunked.tiling.groups):
        for number in range(chunked.chunks):
            lines = lines_of(chunked, group * chunked.chunks + number)
            assert lines.size <= chunk
            start, stop = chunked.starts[group * chunked.chunks + number :][:2]
            record = chunked.records[4 * start : 4 * stop]
            assert chunk * line + record.nbytes <= chunked.stage_bytes
            edges, at, ahead = block.edges, header_words(block), np.zeros(block.edges, int)
            firsts, told = np.split(record.view(np.uint16)[: 2 * header_words(block)], [2 * first_words(block)])
            firsts = firsts[: 2 * edges * block.warps].reshape(block.warps, -1)
            ends = told.reshape(block.warps, -1)
            assert ends.shape[1] % ENDS == 0
            assert (ends[:, block.outputs :] == ends[:, block.outputs - 1 :][:, :1]).all()
            ends = ends[:, : block.outputs].ravel().tolist()
            for slot in range(block.slots):
                offsets, found = [], []
                if slot % block.outputs == 0:
                    begin, *firsts_of_warp = firsts[slot // block.outputs].tolist()
                    assert begin == 4 * at
                    ahead = line * np.array(firsts_of_warp[:edges])
                while 4 * at < ends[slot]:
                    unit, here = record[at : at + 2 * edges], min(edges, (ends[slot] - 4 * at) // 8)
                    assert 4 * at % (8 * edges) == 0
                    assert unit.size == 2 * edges
                    offsets.extend(ahead[:here])
                    found.extend(unit[:here])
                    ahead, at = unit[edges:], at + 2 * edges
                place = np.array(offsets, int) // line
                assert (np.array(offsets, int) % line == 0).all()
                assert (np.diff(place) > 0).all()
                assert (place < lines.size).all()
                if found:
                    output = chunked.slots[group * block.slots + slot, 0]
                    weights[lines[place], output] = np.array(found, np.int32).view(np.float32)
            assert record.nbytes - 16 < 4 * at <= record.nbytes
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
    chunked = chunk_weights(weights, bias, Tiling(block, groups, chunk), H200)
    found, found_bias = read_back(chunked)
    assert np.array_equal(found, weights.to_scipy().toarray())
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
    tiling = Tiling(BLOCKS[2], 1, 200)
    tight = replace(H200, block_bytes=150 << 10)
    chunked = chunk_weights(weights, np.zeros(120, np.float32), tiling, tight)
    assert chunked.tiling.chunk < 50
    assert chunked.stages >= 2
    assert np.array_equal(read_back(chunked)[0], weights.to_scipy().toarray())


def test_records_are_as_short_as_their_ends_can_tell(rng):
    weights = csc_of(rng.random((300, 1240), dtype=np.float32) + 1)
    block = BlockShape(1, 40, 31, 1, 1)
    for tiling in (Tiling(block, 1, 300), tiling_for(64, 300, 1240, weights.nnz, H200, 32)):
        chunked = chunk_weights(weights, np.zeros(1240, np.float32), tiling, H200)
        assert 16 * np.diff(chunked.starts).max() <= MOST_RECORD_BYTES
        assert np.array_equal(read_back(chunked)[0], weights.to_scipy().toarray())


def test_warps_of_a_group_get_as_many_edges(rng):
    degrees = np.sort((400 * rng.random(90) ** 4).astype(int))
    mask = np.arange(400)[:, None] < rng.permutation(degrees)
    block = BlockShape(1, 8, 4, 1)
    chunked = chunk_weights(csc_of(mask.astype(np.float32)), np.zeros(90, np.float32), Tiling(block, 3, 400), H200)
    for group in range(3):
        record = chunked.records[4 * chunked.starts[group] :].view(np.uint16)
        begins, ends = (
            record[: 4 * block.warps : 4],
            record[2 * first_words(block) :][block.outputs - 1 : block.slots : 8],
        )
        pairs = (ends.astype(int) - begins) // 16
        largest = degrees[30 * (2 - group) : 30 * (3 - group)]
        assert np.ptp(pairs) <= (np.ptp(largest) + 1) // 2 + block.outputs
        outputs = chunked.slots[group * block.slots : (group + 1) * block.slots, 0]
        assert sorted(mask[:, outputs[outputs >= 0]].sum(axis=0)) == sorted(largest)
