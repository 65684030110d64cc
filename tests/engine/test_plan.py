"""Planning: decisions that are obeyed, printed and refused."""

import json
from dataclasses import replace

import numpy as np
import pytest

from sparsenn.backends import SparseKernel
from sparsenn.backends.cpu import CPUBackend
from sparsenn.engine import execute, infer, plan
from sparsenn.engine.sections import FIRST_LOOK, Pace
from sparsenn.errors import DeviceError, ResourceError, ShapeError, UsageError
from sparsenn.formats import CSC, from_dense
from sparsenn.layers import ReLU, SparseLinear
from sparsenn.network import Network


class Ahead(CPUBackend):
    prepares_ahead = True


def layer(dense, bias=None):
    return SparseLinear(CSC.from_scipy(from_dense(np.asarray(dense, dtype=np.float32)).to_scipy()), bias, ReLU())


def test_a_plan_prints_as_sentences(network, inputs):
    text = str(plan(network, inputs))
    assert "100 inputs (100.0 % dense) through 12 layers with 4,800 edges on cpu" in text
    assert "in one batch." in text
    assert "Kernel panel: " in text
    assert "No two outputs of a layer are equal: nothing to merge." in text
    assert text.endswith("Rows of zeros are dropped from the first layer on; equal rows are computed once.")


def test_what_is_switched_off_is_said(network, inputs):
    text = str(plan(network, inputs, compaction=False, deduplication=False, merging=False, batch_size=30))
    assert "in 4 batches of up to 30" in text
    assert "Equal outputs are not merged. Rows of zeros are kept; equal rows are not looked for." in text


def test_a_reviving_layer_is_said(inputs, rng):
    revived = Network((layer(rng.random((20, 20))), layer(rng.random((20, 20)), 0.5), layer(rng.random((20, 20)))))
    assert "dropped only after layer 2, the last that revives them" in str(plan(revived, inputs))


@pytest.mark.parametrize("layers", [1, 2])
def test_rows_that_the_last_layer_may_revive_are_said_to_be_kept(inputs, rng, layers):
    revived = Network((*(layer(rng.random((20, 20))) for _ in range(layers - 1)), layer(rng.random((20, 20)), 0.5)))
    text = str(plan(revived, inputs))
    assert "Rows of zeros are kept, as the last layer may revive them; equal rows" in text
    assert "dropped" not in text


def test_a_plan_is_json(network, inputs):
    record = json.loads(json.dumps(plan(network, inputs, kernel="scipy").to_dict()))
    assert record["kernel"] == "scipy"
    assert record["computed_edges"] == network.edges


def test_an_explicit_kernel_is_obeyed(network, inputs):
    for kernel in ("sequential", "scipy", "scatter", "panel"):
        result = infer(network, inputs, kernel=kernel)
        assert {entry.kernel for entry in result.statistics} == {kernel}


def test_auto_scatters_sparse_inputs_and_gathers_dense_ones(rng):
    wide = Network((layer(rng.random((500, 500)) * (rng.random((500, 500)) < 0.1)),))
    sparse = from_dense(rng.random((64, 500)) < 0.01)
    dense = from_dense(rng.random((64, 500)))
    assert infer(wide, sparse).statistics[0].kernel == "scatter"
    assert infer(wide, dense).statistics[0].kernel == "panel"


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"kernel": "panle"}, UsageError, "did you mean 'panel'"),
        ({"device": "gpu"}, UsageError, "unknown device 'gpu'"),
        ({"device": "cuda:999"}, DeviceError, "(?i)cuda"),
        ({"device": "reference", "kernel": "panel"}, UsageError, "reference kernel"),
        ({"batch_size": 0}, UsageError, "a batch size of 0"),
        ({"batch_size": -3}, UsageError, "a batch size of -3"),
        ({"memory_limit": 0}, UsageError, "a memory limit of 0"),
        ({"memory_limit": 100}, ResourceError, "does not hold one row"),
        ({"weight_memory": 0}, UsageError, "a weight memory of 0"),
    ],
    ids=str,
)
def test_what_cannot_be_done_is_refused(network, inputs, options, error, message):
    with pytest.raises(error, match=message):
        plan(network, inputs, **options)


def test_inputs_of_another_width_are_refused(network):
    with pytest.raises(ShapeError, match="the inputs have 7 columns; layer 1 takes 20"):
        plan(network, from_dense(np.eye(7)))


def test_weights_in_parts_are_said(network, inputs):
    chosen = plan(network, inputs, weight_memory=1)
    assert "Weights are prepared in 12 parts, one after the other. Rows of zeros" in str(chosen)
    assert "the next while one is computed" in str(replace(chosen, backend=Ahead()))
    assert (chosen.to_dict()["weight_memory"], chosen.to_dict()["segments"]) == (1, 12)


def test_two_segments_share_the_memory_where_one_is_prepared_ahead(network, inputs):
    size = CPUBackend().prepared_bytes(network[0])
    ahead = replace(plan(network, inputs, weight_memory=6 * size), backend=Ahead())
    assert ahead.segments == ((0, 3), (3, 6), (6, 9), (9, 12))
    whole = replace(plan(network, inputs, weight_memory=12 * size), backend=Ahead())
    assert whole.segments == ((0, 12),)


def test_the_memory_limit_sets_the_batch(network, inputs):
    small = plan(network, inputs, memory_limit=10_000)
    assert 1 < small.batch_size < 100
    assert small.batches[0] == (0, small.batch_size)
    assert small.batches[-1][1] == 100
    assert np.array_equal(
        execute(small, inputs).outputs.to_scipy().toarray(), infer(network, inputs).outputs.to_scipy().toarray()
    )


def depth(chosen, kernel, layer, previous, removed):
    """How many layers a launch takes, of a network that is one section, and what is noted of that."""
    pace = Pace(previous, removed)
    (section,) = chosen.sections
    end = section.end(kernel, layer, pace, chosen.compaction or chosen.deduplication)
    assert end == min(layer + pace.depth, len(chosen.network))
    return pace.depth


def test_depth_grows_while_no_row_goes(network, inputs):
    def found(previous, removed, **options):
        chosen = plan(network, inputs, **options)
        return depth(chosen, chosen.kernel, 6, previous, removed)

    assert found(6, 0.5, device="cpu") == 6
    assert found(6, 0.0, device="cpu") == 12
    assert found(1, 0.0, kernel="scipy") == 1
    assert found(1, 1.0, device="cpu", compaction=False, deduplication=False) == 12


def test_the_kernel_for_the_rest_is_the_one_with_the_least_estimate(network, inputs):
    def takes(name, groups_rows, seconds):
        told = {"name": name, "device": "cuda", "summary": name}
        return SparseKernel(**told, launch=print, fuses=True, groups_rows=groups_rows, seconds=seconds)

    whole = takes("whole", True, lambda machine, layers, rows: rows * len(layers))
    parts = takes("parts", False, lambda machine, layers, rows: 50 + rows * len(layers) / 2)
    chosen = replace(plan(network, inputs, device="cpu"), kernels=(whole, parts))
    (section,) = chosen.sections
    assert section.kernel_for(0, 10**6) is whole
    assert section.kernel_for(6, 10) is whole
    assert section.kernel_for(6, 100) is parts
    assert depth(chosen, whole, 0, 1, 1.0) == FIRST_LOOK
    assert depth(chosen, whole, 6, 1, 1.0) == 12
    assert depth(replace(chosen, kernels=(whole,)), whole, 0, 1, 1.0) == 12


@pytest.mark.parametrize("batch_size", [None, 40])
def test_weights_packed_in_segments_give_the_same(network, inputs, batch_size):
    whole = infer(network, inputs, batch_size=batch_size)
    assert whole.plan.segments == ((0, 12),)
    size = whole.plan.backend.prepared_bytes(network[0])
    chosen = plan(network, inputs, batch_size=batch_size, weight_memory=3 * size)
    assert chosen.segments == ((0, 3), (3, 6), (6, 9), (9, 12))
    parts = execute(chosen, inputs)
    assert np.array_equal(parts.outputs.to_scipy().toarray(), whole.outputs.to_scipy().toarray())
