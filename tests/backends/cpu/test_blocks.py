"""Layers that are cut into blocks of inputs: the bits of layers that are not."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from sparsenn import GELU, Network, ReLU, SparseLinear
from sparsenn.backends.cpu import packed
from sparsenn.engine import Session
from sparsenn.formats import CSC, from_dense


def layer(inputs: int, outputs: int, density: float, iso: bool = False) -> SparseLinear:
    rng = np.random.default_rng(inputs + outputs)
    values = np.full((inputs, outputs), 0.5) if iso else rng.normal(size=(inputs, outputs))
    dense = np.where(rng.random((inputs, outputs)) < density, values, 0)
    dense[:, 0] = 0  # an output without weights
    weights = CSC.from_scipy(from_dense(dense.astype(np.float32)).to_scipy()) if iso else sp.csc_array(dense)
    bias = rng.normal(size=outputs).astype(np.float32)
    return SparseLinear(weights, bias, ReLU()) if iso else SparseLinear.from_scipy(weights, bias, GELU())


def test_entries_come_block_by_block() -> None:
    cut, whole = layer(700, 5, 0.4), layer(5, 300, 0.1, iso=True)
    ones = [np.ones(each.outputs, np.int64) for each in (whole, cut)]
    given = packed.pack([whole, cut], ones)
    assert given.blocks.tolist() == [1, 3]
    assert given.value_strides.tolist() == [0, 1]
    assert given.firsts.tolist() == [0, 301]
    for number, each in enumerate((whole, cut)):
        dense, first = each.weights.to_scipy().toarray(), given.firsts[number]
        for block in range(given.blocks[number]):
            for output in range(each.outputs):
                at = first + block * each.outputs + output
                inputs = given.inputs[given.offsets[at] : given.offsets[at + 1]]
                lines = slice(256 * block, 256 * (block + 1)) if number else slice(None)
                np.testing.assert_array_equal(inputs, np.flatnonzero(dense[lines, output]) + 256 * block)
                places = given.value_starts[number] + given.value_strides[number] * np.arange(
                    *given.offsets[at : at + 2]
                )
                np.testing.assert_array_equal(given.values[places], dense[inputs, output])
    assert given.offsets[-1] == given.inputs.size == whole.edges + cut.edges


@pytest.mark.parametrize("rows", [0, 1, 15, 16, 17, 64, 65, 197, 700])
@pytest.mark.parametrize("iso", [False, True])
def test_bits_are_those_without_blocks(rows: int, iso: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network((layer(600, 140, 0.3, iso), layer(140, 330, 0.01), layer(330, 40, 0.4)))
    inputs = np.random.default_rng(rows).normal(size=(rows, 600)).astype(np.float32)
    inputs[::5] = 0
    results = [Session(network, device="cpu", kernel="panel").run(given) for given in (inputs, sp.csr_array(inputs))]
    assert [packed.blocks_of(each) for each in network] == [3, 1, 2]
    monkeypatch.setattr(packed, "BLOCK_ENTRIES", 1 << 40)
    assert [packed.blocks_of(each) for each in network] == [1, 1, 1]
    want = Session(network, device="cpu", kernel="panel")(inputs)
    for result in results:
        np.testing.assert_array_equal(result.dense, want)
        assert not rows or result.statistics[-1].nonzeros == np.count_nonzero(want)
