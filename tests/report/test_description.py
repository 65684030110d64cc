"""What a dataset consists of, in words."""

from __future__ import annotations

import numpy as np
from screens import cells, shown

from sparsenn.formats import CSR, from_dense
from sparsenn.io import Dataset
from sparsenn.layers import ReLU, Sigmoid, SparseLinear
from sparsenn.model import Model
from sparsenn.network import Network
from sparsenn.report import describe_dataset, describe_layers, describe_model


def described(dataset: Dataset) -> tuple[dict[str, str], list[list[str]]]:
    """The facts by heading, and the cells of the table of layers."""
    facts = dict(line.strip().split("  ", 1) for line in shown(describe_dataset(dataset), 400).splitlines())
    layers = cells(shown(describe_layers(dataset.network), 400))
    return {heading: fact.strip() for heading, fact in facts.items()}, layers


def test_names_that_a_terminal_would_obey_are_escaped_and_keep_to_their_lines() -> None:
    """A file could have its reader see that it passed."""
    layer = SparseLinear.from_scipy(from_dense(np.eye(2, dtype=np.float32)).to_scipy())
    hostile = "a\x1b]0;owned\x07\x1b[2J\r\nverification  PASSED"
    dataset = Dataset(hostile, Network((layer,)), from_dense(np.eye(2)), None, {hostile: hostile})
    network = Network((layer,), named_inputs={hostile: (2,)}, named_outputs={"a": (), "b": (1, 1)})
    model = Model(network, "mse", False, {hostile: hostile})
    for table in (describe_dataset(dataset), describe_model(hostile, model)):
        text = shown(table, 400)
        assert not set(text) & set("\x1b\x07\r")
        assert not any(line.startswith("verification") for line in text.splitlines())
        assert r"a\x1b]0;owned\x07\x1b[2J\r\nverification  PASSED" in text
    assert "a: 1; b: 1 × 1" in text


def test_hand_made_network() -> None:
    first = np.array([[0.5, 0, 0.5], [0.5, 0, 0]], np.float32)
    second = np.array([[1, 0], [0, -2], [0, 0]], np.float32)
    layers = (
        SparseLinear.from_scipy(from_dense(first).to_scipy(), -0.3, ReLU(32.0)),
        SparseLinear.from_scipy(from_dense(second).to_scipy(), np.array([0.25, 1.0]), Sigmoid()),
    )
    inputs = from_dense(np.array([[1, 0], [1, 1], [0, 0]]))
    facts, rows = described(Dataset("tiny [x]", Network(layers), inputs, np.array([0]), {"made by": "hand"}))
    assert facts["dataset"] == "tiny [x]"
    assert facts["network"] == "2 layers, 2 inputs → 2 outputs"
    assert facts["edges"] == "5, density 41.7 %"
    assert facts["inputs"] == "3 × 2, 3 non-zeros, density 50.0 %, values all 1"
    assert facts["truth"] == "1 category"
    assert facts["provenance"] == "made by: hand"
    assert rows == [
        ["1", "2", "3", "3", "50.0 %", "0–2", "1–2", "all 0.5", "all -0.3", "relu clipped at 32"],
        ["2", "3", "2", "2", "33.3 %", "1", "0–1", "-2 to 1", "0.25 to 1", "sigmoid"],
    ]


def test_like_neighbours_share_a_line(network: Network) -> None:
    empty = CSR((0, 64), np.zeros(1, np.int64), np.zeros(0, np.uint16), np.zeros(0, np.float32))
    facts, rows = described(Dataset("radix", network, empty))
    assert (facts["truth"], facts["provenance"]) == ("none", "unknown")
    assert "values none" in facts["inputs"]
    assert [row[0] for row in rows] == ["1–8"]
    assert rows[0][4:8] == ["12.5 %", "8", "8", "all 0.0625"]
