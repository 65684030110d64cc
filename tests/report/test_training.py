"""Trainings as text, pictures and JSON."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from screens import cells, shown

from sparsenn.backends.trainer import Evaluation, TrainingResult
from sparsenn.layers import Identity, Linear, Sigmoid
from sparsenn.network import Network
from sparsenn.report import draw_losses, loss_table, to_json, training_record, training_summary

EVALUATIONS = {"classes": ("cross_entropy", 0.75), "numbers": ("mse", None)}


def result(kind: str = "numbers", epochs: int = 25, validated: bool = True, first: int = 0) -> TrainingResult:
    loss, accuracy = EVALUATIONS[kind]
    layers = (Linear(np.ones((3, 1200)), None, Sigmoid()), Linear(np.ones((1200, 2)), None, Identity()))
    validation = tuple(
        (epoch, Evaluation(400, loss, 2.0 / epoch, accuracy)) for epoch in range(5, epochs + 1, 5) if validated
    )
    return TrainingResult(
        network=Network(layers),
        loss=loss,
        classes=kind == "classes",
        losses=tuple(1.0 / epoch for epoch in range(1, epochs + 1)),
        validation=validation,
        rows=1000,
        device="cpu (2 threads)",
        kernel="numpy",
        precision="float32",
        first_epoch=first,
        seconds=5.0,
        options={"seed": 3},
    )


def test_summary() -> None:
    text = shown(training_summary("some.train", result("classes", first=5)))
    for fragment in (
        "some.train",
        "3 → 1,200 → 2; 6,000 weights",
        "numpy, float32, on cpu (2 threads)",
        "25 of 1,000 rows, 5 of them before this run",
        "4,000 rows/s",
        "1 → 0.04",
        "cross_entropy 0.08, accuracy 75.00 %, over 400 rows",
    ):
        assert fragment in text
    assert "validation" not in shown(training_summary("some.train", result(validated=False)))


@pytest.mark.parametrize(
    ("epochs", "numbers"),
    [(1, [1]), (3, [1, 2, 3]), (10, list(range(1, 11))), (25, [1, 4, 6, 9, 12, 14, 17, 20, 22, 25])],
)
def test_table_shows_first_last_and_some_between(epochs: int, numbers: list[int]) -> None:
    rows = cells(shown(loss_table(result(epochs=epochs, validated=False))))
    assert [int(row[0]) for row in rows] == numbers
    assert [float(row[1]) for row in rows] == pytest.approx([1 / number for number in numbers], rel=1e-5)


@pytest.mark.parametrize("kind", EVALUATIONS)
def test_record_is_json(kind: str) -> None:
    found = json.loads(to_json(training_record(result(kind))))
    assert found["losses"] == [1.0 / epoch for epoch in range(1, 26)]
    assert found["validation"][-1] == {
        "epoch": 25,
        "rows": 400,
        "loss": EVALUATIONS[kind][0],
        "value": 0.08,
        "accuracy": EVALUATIONS[kind][1],
    }
    assert (found["options"], found["rows_per_second"], found["kernel"]) == ({"seed": 3}, 5000, "numpy")


@pytest.mark.parametrize("kind", EVALUATIONS)
@pytest.mark.parametrize("validated", [True, False])
@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_picture(tmp_path: Path, kind: str, validated: bool, suffix: str) -> None:
    path = tmp_path / f"loss{suffix}"
    draw_losses(result(kind, validated=validated), path, "title")
    assert path.read_bytes()[:4] in (b"\x89PNG", b"<?xm", b"%PDF")
    assert list(tmp_path.iterdir()) == [path]
