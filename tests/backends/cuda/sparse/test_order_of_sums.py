"""The kernels of resident, emulated: each sums an output's products by increasing input, and adds the bias at last."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from fused import in_order as sums_in_order
from hypothesis import given, settings
from hypothesis import strategies as st
from sparse_emulation import CALL, address, emulated_kernel
from sparse_layers import csc, sparse_layer
from strategies import seeds

from sparsenn.backends.cuda.sparse.resident.chain import _STAGE
from sparsenn.backends.cuda.sparse.resident.counted import _COUNTED, pack_counted
from sparsenn.backends.cuda.sparse.resident.packed import _LAYER

NETWORK = np.dtype([(name, "u8") for name in ("layers", "runs", "pairs", "bias", "copies")])


@dataclass
class Network:
    """Layers as `resident.cuh` has them, and as the matrices that they are."""

    matrices: list
    biases: list
    arrays: tuple
    record: np.ndarray


SLICE, DEPTH = 16, 8


def packed(matrices, biases):
    layers = np.zeros(len(matrices), _LAYER)
    runs, pairs, bias = [], [], []
    for layer, matrix, of_layer in zip(layers, matrices, biases, strict=True):
        layer["inputs"], layer["outputs"] = matrix.shape
        layer["output"], layer["clip"] = len(runs), np.inf
        for first in range(0, matrix.shape[1], SLICE):
            edges = [np.flatnonzero(column) for column in matrix.T[first : first + SLICE]]
            edges += [np.zeros(0, np.int64)] * (SLICE - len(edges))
            counts = [(found.size + 1) // 2 for found in edges]
            runs += [(len(pairs) + lane, count) for lane, count in enumerate(counts)]
            layer["edges"] += 2 * sum(counts)
            for pair in range(-(-max(counts) // DEPTH) * DEPTH):
                for lane in range(SLICE):
                    held = edges[lane][2 * pair : 2 * pair + 2]
                    ends = [(edge, matrix[edge, first + lane].view(np.int32)) for edge in held]
                    pairs.append([*ends, *[(matrix.shape[0], 0)] * (2 - len(ends))])
        bias += [*of_layer, *[np.nan] * (len(runs) - len(bias) - len(of_layer))]
    filled = np.array([*pairs, [(0, 0), (0, 0)]], np.int32)
    aligned = np.zeros(filled.nbytes + 16, np.uint8)  # two edges are read at once, at a multiple of 16 bytes
    begin = -address(aligned) % 16
    aligned[begin : begin + filled.nbytes] = filled.view(np.uint8).ravel()
    arrays = layers, np.int32(runs), aligned[begin:], np.float32(bias), np.ones(len(runs), np.int32)
    record = np.zeros(1, NETWORK)
    for name, array in zip(NETWORK.names, arrays, strict=True):
        record[name] = address(array)
    return Network(matrices, biases, arrays, record)


def in_order(network, rows):
    return sums_in_order([sparse_layer(*each) for each in zip(network.matrices, network.biases, strict=True)], rows)


def random_network(rng, widths, *, weights=None):
    shapes = list(pairwise(widths))
    draw = (lambda shape: rng.choice(np.float32(weights), shape)) if weights else (lambda shape: rng.normal(size=shape))
    density = [rng.choice([0.0, 0.1, 0.5, 1.0], shape[1]) for shape in shapes]
    matrices = [
        (draw(shape) * (rng.random(shape) < share)).astype(np.float32)
        for shape, share in zip(shapes, density, strict=True)
    ]
    return packed(matrices, [rng.normal(size=shape[1]).astype(np.float32) for shape in shapes])


class Stage:
    """One stage of all layers, and memory for what it leaves; nothing is dropped."""

    def __init__(self, network, rows, first=None):
        width = network.matrices[-1].shape[1]
        self.values = np.full((max(1, rows), width), np.nan, np.float32)
        self.next = np.full(max(1, rows), -7, np.int32)
        self.list = np.full(max(1, rows), -7, np.int32)
        self.hashes, self.weights = np.zeros(max(1, rows), np.uint64), np.zeros(max(1, rows), np.int32)
        self.left = np.zeros(2, np.int32)
        self.counters = np.zeros((len(network.matrices), 4), np.uint64)
        self.count = np.int32([rows])
        self.first = first
        self.record = np.zeros(1, _STAGE)
        self.record["last"], self.record["droppable_from"] = len(network.matrices), 1 << 20
        for name, array in (
            *(("count_in", self.count), ("rows_out", self.values), ("hashes_out", self.hashes), ("next", self.next)),
            *(("weights_out", self.weights), ("count_out", self.left), ("counters", self.counters)),
        ):
            self.record[name] = address(array)
        if first is not None:
            self.record["rows_in"] = address(first)

    def list_rows(self):
        self.record["list"], self.record["list_count"] = address(self.list), address(self.left[1:])

    def outputs(self):
        rows = int(self.count[0])
        if self.record["list"][0]:
            assert sorted(self.list[:rows]) == list(range(rows))
            return self.values[self.list[self.next[:rows]]]
        assert sorted(self.next[:rows]) == list(range(rows))
        return self.values[self.next[:rows]]


def given_rows(rng, rows, width, one):
    """CSR rows of one value and the record of the run, with all arrays that it names; and the rows dense."""
    mask = rng.random((rows, width)) < rng.choice([0.1, 0.5])
    indptr = np.concatenate([[0], np.cumsum(mask.sum(axis=1))]).astype(np.int64)
    indices, value = np.nonzero(mask)[1].astype(np.uint16), np.float32([one])
    call = np.zeros(1, CALL)
    call["rows"], call["indptr"], call["indices"] = rows, address(indptr), address(indices)
    call["one"] = address(value)
    return call, (indptr, indices, value), np.where(mask, np.float32(one), np.float32(0)).astype(np.float32)


def assert_bits(found, expected):
    assert np.array_equal(found.view(np.int32), expected.view(np.int32))


TILES = "tile_rows", (70, 40), lambda widest: (0, 5, 33 * (widest + 1))
FEW = "few_rows", (600, 5), lambda widest: (264, widest + 1)
"""Kernels; the widest layer and the most rows; and what a launch is told of sizes, by the widest layer."""


@pytest.mark.parametrize(("name", "most", "sizes_of"), [TILES, FEW], ids=["tiles", "rows of a block"])
@settings(max_examples=15, deadline=None)
@given(data=st.data(), seed=seeds)
def test_kernels_sum_in_order(name, most, sizes_of, data, seed):
    widths = data.draw(st.lists(st.integers(1, most[0]), min_size=2, max_size=4))
    rows, rng = data.draw(st.integers(1, most[1])), np.random.default_rng(seed)
    network, features = random_network(rng, widths), rng.normal(size=(rows, widths[0])).astype(np.float32)
    stage, threads = Stage(network, rows, features), 256 if name == "tile_rows" else 128
    more = {"INDEX": "index16"} if name == "tile_rows" else {"CLUSTER": 1}
    source = "sparse/tile_layers.cu" if name == "tile_rows" else "sparse/row_layers.cu"
    sizes = map(np.int32, sizes_of(max(widths)))
    kernel = emulated_kernel(source, name, THREADS=threads, **more)
    kernel.launch(2, threads, network.record, stage.record, *sizes, reads=network.arrays, seed=seed % 1000)
    assert_bits(stage.outputs(), in_order(network, features))


@settings(max_examples=10, deadline=None)
@given(seeds, st.lists(st.integers(1, 70), min_size=2, max_size=3), st.integers(1, 40), st.sampled_from([1.0, 0.3]))
def test_bits_sum_in_order(seed, widths, rows, one):
    rng = np.random.default_rng(seed)
    network = random_network(rng, widths)
    call, arrays, features = given_rows(rng, rows, widths[0], one)
    stage = Stage(network, rows)
    kernel = emulated_kernel("sparse/tile_layers.cu", "tile_inputs", THREADS=256, INDEX="index16")
    sizes = np.int32(1), np.int32(5), np.int32(33 * (max(widths[1:]) + 1))
    kernel.launch(
        2, 256, network.record, stage.record, *sizes, call, reads=(*arrays, *network.arrays), seed=seed % 1000
    )
    assert_bits(stage.outputs(), in_order(network, features))


def count(rng, network, rows, one, *, tile_rows, blocks, stored=True):
    """Check the outputs of rows of one value, of which there is none where it is not stored."""
    call, arrays, features = given_rows(rng, rows, network.matrices[0].shape[0], one)
    if not stored:
        arrays[0][:], call["one"] = 0, 0
    stage = Stage(network, rows)
    stage.list_rows()
    counted = pack_counted(csc(network.matrices[0]))
    held = [np.ascontiguousarray(each) for each in (counted.slices, counted.run_counts, counted.runs, counted.quads)]
    record = np.zeros(1, _COUNTED)
    record["arrays"] = [address(each) for each in held]
    record["units"], record["exponent"] = counted.units, counted.exponent
    kernel = emulated_kernel("sparse/count_inputs.cu", "count_inputs", ROWS=tile_rows, INDEX="index16", EDGE="index16")
    kernel.launch(blocks, 128, network.record, stage.record, record, call, reads=(*arrays, *held))
    assert_bits(stage.outputs(), in_order(network, features))
    return stage.counters


@pytest.mark.parametrize(
    ("weights", "one"),
    [
        ([0.0625], 1.0),
        ([0.5, -0.75, 2.25], 3.0),
        ([0.1, 0.7, -0.3], 1.0),  # sums are rounded
        ([0.5, -0.25], 0.1),
        ([1.0], 2.0**-130),  # below the normal numbers
        ([2.0**100], 2.0**20),
        (None, 1.0),
        ([1.0, 2.0**-24], 1.0),  # the smaller ones are lost, one by one
    ],
)
@pytest.mark.parametrize("tile_rows", [8, 16, 32])
def test_counting_gives_the_bits_of_the_order(rng, weights, one, tile_rows):
    network = random_network(rng, (150, 70), weights=weights)
    assert count(rng, network, 45, one, tile_rows=tile_rows, blocks=2)[0].tolist()[0] == 45


def test_a_run_without_entries_has_no_value_to_read(rng):
    count(rng, random_network(rng, (40, 30), weights=[0.3]), 9, 0.0, tile_rows=32, blocks=1, stored=False)
