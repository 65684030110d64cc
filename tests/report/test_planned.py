"""What a plan makes of each layer, as a table and as JSON."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from scipy.sparse import csc_array
from screens import shown
from strategies import mixed_networks

from sparsenn.engine import Session, plan_rows
from sparsenn.layers import Conv2d, Flatten, Linear, MaxPool2d, SparseLinear
from sparsenn.network import Network
from sparsenn.report import plan_record, plan_table, to_json
from sparsenn.report.planned import planned_layers


def repeated() -> Network:
    """Of the first layer's four outputs two are equal to others: they are computed once."""
    first = np.array([[1, 1, 0, 0], [0, 0, 3, 3], [0, 0, 5, 5]], np.float32)
    second = np.array([[1, 2], [1, 2], [1, 2], [1, -2]], np.float32)
    return Network(tuple(SparseLinear.from_scipy(csc_array(weights)) for weights in (first, second)))


def planned(network: Network, width: int = 200) -> list[str]:
    return shown(plan_table(plan_rows(network, 100, device="cpu")), width).splitlines()


def test_density_and_outputs_left_out_are_those_of_a_hand_made_network() -> None:
    first, second = planned_layers(plan_rows(repeated(), 100, device="cpu"))
    assert (first.layer, first.what, first.shape, first.density, first.left_out) == (1, "sparse", (4,), 0.5, 0.5)
    assert (second.layer, second.shape, second.density, second.left_out) == (2, (2,), 1.0, 0.0)


@settings(max_examples=20, deadline=None)
@given(mixed_networks())
def test_every_layer_is_told_once_with_the_kernel_of_its_step(network: Network) -> None:
    plan = plan_rows(network, 10, device="cpu")
    found = planned_layers(plan)
    assert [layer.layer for layer in found] == list(range(1, len(network) + 1))
    assert [layer.kernel for layer in found] == [kernel.name for kernel in plan.kernels]
    assert [layer.shape for layer in found] == list(network.shapes[1:])
    assert all(0 <= layer.left_out <= 1 for layer in found)
    record = json.loads(to_json(plan_record("model.h5", plan)))
    assert [layer["kernel"] for layer in record["per_layer"]] == [layer.kernel for layer in found]
    assert (record["model"], record["rows"], record["estimate"]) == ("model.h5", 10, plan.estimate)


@pytest.mark.usefixtures("measuring_kernels")
def test_choices_that_are_stored_are_those_of_the_plan() -> None:
    rng = np.random.default_rng(1)
    weights = [np.where(rng.random((256, 256)) < 0.2, rng.random((256, 256)), 0) for _ in range(2)]
    network = Network(tuple(SparseLinear.from_scipy(csc_array(each)) for each in weights))
    assert not any(step.is_measured for step in plan_rows(network, 1, device="cpu").steps)
    with Session(network, device="cpu") as session:
        measured = session.plan(rng.random((1, 256), np.float32))
    found = plan_rows(network, 1, device="cpu")
    assert (found.kernels, found.estimate) == (measured.kernels, measured.estimate)
    assert all(step.is_measured for step in found.steps)
    assert "measured" in shown(plan_table(found))


def test_layers_that_look_alike_share_a_line_and_a_step_tells_its_estimate_once() -> None:
    rng = np.random.default_rng(1)
    matrices = [csc_array(np.where(np.arange(64)[:, None] % 8 == 0, rng.random((64, 64)), 0)) for _ in range(3)]
    network = Network(tuple(SparseLinear.from_scipy(matrix) for matrix in matrices))
    lines = [line.split("│") for line in planned(network) if "sparse" in line]
    steps = plan_rows(network, 100, device="cpu").steps
    assert len(lines) == len(steps) < 3
    assert all(line[-2].strip() for line in lines)
    assert planned(network)[0].startswith("planned for 100 rows, on cpu")


def test_the_table_fits_80_columns() -> None:
    network = Network(
        (Conv2d(np.ones((4, 1, 7, 7))), MaxPool2d(2), Flatten(), Linear(np.ones((6400, 10)))), (1, 86, 86)
    )
    assert max(map(len, planned(network, 80))) <= 80
    assert any("4 × 80 × 80" in line and "conv_direct" in line for line in planned(network, 80))
