"""Layers that are cut into blocks of inputs: the bits of layers that are not."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from sparsenn import GELU, Network, ReLU, SparseLinear
from sparsenn.backends.cpu import panel, stack
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
    cut, whole = layer(300, 5, 0.4), layer(5, 300, 0.1)
    assert stack.are_blocks(cut)
    assert not stack.are_blocks(whole)
    blocks = stack.cut_into_blocks([whole, cut])
    assert blocks.starts.tolist() == [0, 0, 3 * 5 + 1]
    dense = cut.weights.to_scipy().toarray()
    for block in range(3):
        for output in range(5):
            first, last = blocks.offsets[block * 5 + output : block * 5 + output + 2]
            inputs = blocks.inputs[first:last]
            want = np.flatnonzero(dense[128 * block : 128 * (block + 1), output]) + 128 * block
            np.testing.assert_array_equal(inputs, want)
            np.testing.assert_array_equal(blocks.values[first:last], dense[inputs, output])
    assert blocks.offsets[-1] == cut.edges == blocks.values.size


@pytest.mark.parametrize("rows", [0, 1, 15, 16, 17, 64, 65, 197, 700])
@pytest.mark.parametrize("iso", [False, True])
def test_bits_are_those_without_blocks(rows: int, iso: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network((layer(300, 140, 0.3, iso), layer(140, 130, 0.01), layer(130, 40, 0.4)))
    inputs = np.random.default_rng(rows).normal(size=(rows, 300)).astype(np.float32)
    inputs[::5] = 0
    results = [Session(network, device="cpu", kernel="panel").run(given) for given in (inputs, sp.csr_array(inputs))]
    monkeypatch.setattr(stack, "BLOCK_ENTRIES", 1 << 40)
    assert not any(map(panel.are_blocks, network))
    want = Session(network, device="cpu", kernel="panel")(inputs)
    for result in results:
        np.testing.assert_array_equal(result.dense, want)
        assert not rows or result.statistics[-1].nonzeros == np.count_nonzero(want)
