"""gather_chunks, emulated, on float32 and halves: any shape of block sums by increasing input; the bias comes last.

Halves are multiplied by scaled halves, exactly; tensor cores cut what does not fit off a sum.
"""

from dataclasses import replace

import numpy as np
import pytest
from sparse_emulation import emulated_kernel, fma
from sparse_layers import csc

from sparsenn.backends.cuda.runtime.activation import IDENTITY
from sparsenn.backends.cuda.sparse.chunks.tiling import TEAM, BlockShape, Tiling, room, teams_of_weights
from sparsenn.backends.cuda.sparse.chunks.weights import chunk_weights
from sparsenn.backends.machine import H200

SHAPES = [
    *(BlockShape(vector, 4, 2, 1) for vector in (1, 2, 4, 8)),
    BlockShape(1, 40, 1, 1),
    BlockShape(2, 34, 2, 1),
    *(BlockShape(vector, TEAM, 2, 1, teams=True) for vector in (1, 2, 4, 8)),
    *(BlockShape(vector, 4, 2, 1, halves=True) for vector in (4, 8)),
]
AS_THEY_ARE = 15
"""The exponent of rows of halves that are not scaled."""


def problem(rng, outputs, degrees):
    """Rows, weights of outputs with so many inputs of 50, and a bias; one input has numbers that are not finite."""
    degree = rng.choice(degrees, outputs)
    mask = rng.permuted(np.arange(50)[:, None] < degree, axis=0)
    weights = (mask * rng.normal(size=mask.shape)).astype(np.float32)
    weights[9, ::2] = 0
    rows = rng.normal(size=(70, 50)).astype(np.float32)
    rows[::3, 9] = rng.choice(np.float32([np.inf, -np.inf, np.nan]), 24)
    return rows, weights, rng.normal(size=outputs).astype(np.float32)


def laid_out(weights, bias, block, chunk, machine=H200):
    sparse = csc(weights)
    tiling = Tiling(block, -(-bias.size // block.slots), chunk)
    chunked = chunk_weights(sparse, bias, tiling, machine, teams_of_weights(sparse) if block.teams else None)
    assert 2 <= chunked.stages <= 8
    assert chunked.stages * chunked.stage_bytes <= room(machine, block)
    return chunked


def launched(rows, weights, bias, block, chunk):
    """Run the kernel; returns the outputs of the rows."""
    target = tiles_launched(rows, weights, bias, block, chunk)
    return target.transpose(0, 2, 1).reshape(-1, bias.size)[: len(rows)]


def tiles_launched(rows, weights, bias, block, chunk, further=0):
    """Run the kernel on tiles with room for more lines than it reads and writes; returns the tiles of outputs."""
    chunked = laid_out(weights, bias, block, chunk)
    tiles = -(-len(rows) // block.rows)
    padded = np.zeros((tiles * block.rows, rows.shape[1] + further), np.float16 if block.halves else np.float32)
    padded[: len(rows), : rows.shape[1]] = np.nan_to_num(rows, nan=0, posinf=0, neginf=0) if block.halves else rows
    features = np.ascontiguousarray(padded.reshape(tiles, block.rows, -1).transpose(0, 2, 1))
    target = np.full((tiles, bias.size + 2 * further, block.rows), np.nan, np.float32)
    defines = {"VECTOR": block.vector, "OUTPUTS": block.outputs, "WARPS": block.warps, "TEAMS": int(block.teams)}
    defines |= {"BLOCKS": 1, "__CUDA_ARCH__": 900}
    numbers = [np.int32(number) for number in (tiles, features.shape[1], target.shape[1], *chunked.cut)]
    array = chunked.records, chunked.starts, chunked.runs, chunked.run_starts, chunked.slots
    if block.halves:
        kernel = emulated_kernel(
            "sparse/gather_chunks_half.cu", "gather_chunks_half", **defines, ACTIVATION=IDENTITY, LAST=1
        )
        exponents = np.full(tiles * block.rows, AS_THEY_ARE, np.int32)
        largest = np.zeros(tiles * block.rows, np.float32)
        largest[: len(rows)] = np.abs(rows).max(axis=1)
        bound = np.float32([1, 0, np.inf])
        more = exponents, largest.view(np.int32), None, None, *numbers, *bound, np.float32(np.inf)
    else:
        kernel = emulated_kernel("sparse/gather_chunks.cu", "gather_chunks", **defines)
        more = *numbers, np.int32(IDENTITY), *np.float32([-np.inf, np.inf, np.inf])
    kernel.launch(2, 32 * (block.warps + 1), features, *array, target, *more)
    return target


def in_order(rows, weights, bias, block):
    """Return what the kernel computes, edge by edge."""
    if block.halves:
        return halves_in_order(rows, weights, bias)
    sums = np.zeros((len(rows), bias.size), np.float32)
    for output, column in enumerate(weights.T):
        for edge in np.flatnonzero(column):
            sums[:, output] = fma(column[edge], rows[:, edge], sums[:, output]).astype(np.float32)
    return sums + bias


def halves_in_order(rows, weights, bias):
    taken, sums = rows.astype(np.float16).astype(np.float64), np.zeros((len(rows), bias.size), np.float32)
    for output, column in enumerate(weights.T):
        exponent = np.frexp(np.abs(column).max())[1]
        scaled = np.ldexp(column.astype(np.float64), 14 - exponent).astype(np.float16).astype(np.float64)
        for edge in np.flatnonzero(column):
            sums[:, output] = cut(scaled[edge] * taken[:, edge] + sums[:, output])
        sums[:, output] = np.ldexp(sums[:, output], exponent - 14)
    return np.where(np.isfinite(rows).all(axis=1)[:, None], sums + bias, np.float32(np.nan))


def cut(numbers):
    """Return float32 numbers next to these, towards zero."""
    rounded = numbers.astype(np.float32)
    return np.where(np.abs(rounded) > np.abs(numbers), np.nextafter(rounded, np.float32(0)), rounded)


def assert_bits(found, expected):
    assert np.array_equal(np.isnan(found), np.isnan(expected))
    numbers = ~np.isnan(expected)
    assert np.array_equal(found[numbers].view(np.int32), expected[numbers].view(np.int32))


@pytest.mark.parametrize("block", SHAPES, ids=str)
@pytest.mark.parametrize(("further", "degrees"), [(0, [1, 3, 7]), (3, [0, 1, 2, 3, 7, 50])], ids=["full", "not full"])
def test_any_shape_sums_in_order(block, further, degrees, rng):
    rows, weights, bias = problem(rng, block.slots + further, degrees)
    expected = in_order(rows, weights, bias, block)
    for chunk in (7, 50):
        assert_bits(launched(rows, weights, bias, block, chunk), expected)


@pytest.mark.parametrize("block", SHAPES, ids=str)
def test_tiles_may_have_room_for_more_lines(block, rng):
    rows, weights, bias = problem(rng, block.slots + 3, [0, 3, 7])
    found = tiles_launched(rows, weights, bias, block, 50, further=4)
    assert np.array_equal(found[:, : bias.size], tiles_launched(rows, weights, bias, block, 50), equal_nan=True)
    assert np.isnan(found[:, bias.size :]).all()


@pytest.mark.parametrize("block", SHAPES, ids=str)
def test_inputs_that_a_group_does_not_read_are_left_out(block, rng):
    outputs, width = 3 * block.slots, 480
    rows = rng.normal(size=(40, width)).astype(np.float32)
    weights = np.zeros((width, outputs), np.float32)
    for group in range(3):
        inside = slice(160 * group + 5, 160 * group + 60), slice(group * block.slots, (group + 1) * block.slots)
        mask = rng.permuted(np.arange(55)[:, None] < np.full(block.slots, 20), axis=0)
        if block.teams:
            mask = np.repeat(mask[:, ::TEAM], TEAM, axis=1)
        weights[inside] = mask * rng.normal(size=mask.shape)
    bias = rng.normal(size=outputs).astype(np.float32)
    expected = in_order(rows, weights, bias, block)
    for chunk in (20, 100):
        assert laid_out(weights, bias, block, chunk).runs[:, 2].sum() < width
        assert_bits(launched(rows, weights, bias, block, chunk), expected)


def test_a_chunk_whose_edges_do_not_fit_is_made_smaller(rng):
    weights = rng.random((200, 120), dtype=np.float32) + 1
    tight = replace(H200, block_bytes=150 << 10)
    chunked = laid_out(weights, np.zeros(120, np.float32), BlockShape(8, 8, 15, 1), 200, tight)
    assert chunked.tiling.chunk < 50


@pytest.mark.parametrize("vector", [1, 2, 4, 8])
def test_a_team_reads_each_of_its_inputs_once(vector, rng):
    sizes, width = (1, 3, 0, TEAM, TEAM + 1, 2 * TEAM + 5, 4), 120
    pattern = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    masks = rng.random((len(sizes), width)) < 0.2
    masks[-1] = False
    weights = (masks[pattern] * rng.normal(size=(pattern.size, width))).T.astype(np.float32)
    rows, bias = (rng.normal(size=size).astype(np.float32) for size in ((70, width), pattern.size))
    rows[:, 9] = rng.choice(np.float32([np.inf, -np.inf, np.nan]), 70)
    block = BlockShape(vector, TEAM, 3, 1, teams=True)
    teams = teams_of_weights(csc(weights))
    assert teams.count == sum(-(-size // TEAM) for size in sizes)
    reads = sum(-(-size // TEAM) * mask.sum() for size, mask in zip(sizes, masks, strict=True))
    for chunk in (7, 50, width):
        chunked = laid_out(weights, bias, block, chunk)
        assert chunked.records.size < 20 * (reads + 2 * chunked.chunks * chunked.tiling.groups)
        assert_bits(launched(rows, weights, bias, block, chunk), in_order(rows, weights, bias, block))
