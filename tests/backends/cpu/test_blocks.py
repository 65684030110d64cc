"""Layers that are cut into blocks of inputs: the bits of layers that are not."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from sparse_layers import sparse_layer

from sparsenn import GELU, Network, ReLU, SparseLinear
from sparsenn.backends.cpu import packed
from sparsenn.backends.cpu.tiles import GROUP
from sparsenn.engine import Session


def layer(inputs: int, outputs: int, density: float, iso: bool = False) -> SparseLinear:
    rng = np.random.default_rng(inputs + outputs)
    values = np.full((inputs, outputs), 0.5) if iso else rng.normal(size=(inputs, outputs))
    dense = np.where(rng.random((inputs, outputs)) < density, values, 0)
    dense[:, 0] = 0  # an output without weights
    return sparse_layer(dense, rng.normal(size=outputs), ReLU() if iso else GELU())


def test_entries_come_block_by_block_and_group_by_group() -> None:
    cut, whole = layer(700, 45, 0.1), layer(5, 300, 0.1, iso=True)
    ones = [np.ones(each.outputs, np.int64) for each in (whole, cut)]
    given = packed.pack([whole, cut], ones)
    groups = [-(-each.outputs // GROUP) for each in (whole, cut)]
    assert given.blocks.tolist() == [1, 3]
    assert given.edges.tolist() == [whole.edges, cut.edges]
    assert given.value_strides.tolist() == [0, 1]
    assert given.firsts.tolist() == [0, groups[0] + 1]
    for number, each in enumerate((whole, cut)):
        dense, met = each.weights.to_scipy().toarray(), []
        for at in range(given.blocks[number] * groups[number]):
            block, lines = at // groups[number], slice(None)
            if number:
                lines = slice(256 * block, 256 * (block + 1))
            steps = np.arange(*given.offsets[given.firsts[number] + at :][:2])
            outputs = given.outputs.reshape(-1, GROUP)[given.firsts[number] + at]
            for place, output in enumerate(outputs):
                entries = GROUP * steps + place
                inputs = given.inputs[entries]
                values = given.values[given.value_starts[number] + given.value_strides[number] * entries]
                used = inputs < each.inputs
                expected = np.flatnonzero(dense[lines, output]) + 256 * block if output < each.outputs else []
                np.testing.assert_array_equal(inputs[used], expected)
                assert not np.diff(used.astype(int)).max(initial=0) > 0  # what fills a group comes last
                if output < each.outputs:
                    np.testing.assert_array_equal(values[used], dense[inputs[used], output])
                    met.append((block, output))
                assert not number or not values[~used].any()
            counts = [int((given.inputs[GROUP * steps + place] < each.inputs).sum()) for place in range(GROUP)]
            assert max(counts) == steps.size
        assert sorted(met) == [
            (block, output) for block in range(given.blocks[number]) for output in range(each.outputs)
        ]


def test_the_input_beyond_the_last_may_need_a_wider_type() -> None:
    weights = sp.csc_array((np.ones(3, np.float32), ([0, 7, 65_535], [0, 1, 1])), shape=(65_536, 3))
    each = SparseLinear.from_scipy(weights)
    assert each.weights.indices.dtype == np.uint16
    assert packed.pack([each], [np.ones(3, np.int64)]).inputs.dtype == np.int32
    rows = np.random.default_rng(0).normal(size=(20, 65_536)).astype(np.float32)
    outputs = Session(Network((each,)), device="cpu", kernel="panel")(rows)
    np.testing.assert_array_equal(outputs, Session(Network((each,)), device="cpu", kernel="rows")(rows))


def test_infinite_inputs_do_not_meet_what_fills_a_group() -> None:
    network = Network((layer(600, 141, 0.3),))
    inputs = np.full((16, 600), np.inf, np.float32)
    outputs = Session(network, device="cpu", kernel="panel", check_finite=False)(inputs)
    assert np.isfinite(outputs[:, 0]).all()  # it has no weights


@pytest.mark.parametrize("rows", [0, 1, 15, 16, 17, 64, 65, 197, 700])
@pytest.mark.parametrize("iso", [False, True])
def test_bits_are_those_without_blocks(rows: int, iso: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network((layer(600, 140, 0.3, iso), layer(140, 330, 0.01), layer(330, 40, 0.4)))
    inputs = np.random.default_rng(rows).normal(size=(rows, 600)).astype(np.float32)
    inputs[::5] = 0
    results = [Session(network, device="cpu", kernel="panel").run(given) for given in (inputs, sp.csr_array(inputs))]
    assert [packed.blocks_of(each) for each in network] == [5, 1, 3]
    monkeypatch.setattr(packed, "BLOCK_ENTRIES", 1 << 40)
    assert [packed.blocks_of(each) for each in network] == [1, 1, 1]
    want = Session(network, device="cpu", kernel="panel")(inputs)
    for result in results:
        np.testing.assert_array_equal(result.dense, want)
        assert not rows or result.statistics[-1].nonzeros == np.count_nonzero(want)
