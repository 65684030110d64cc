"""A model run on data: outputs, loss and accuracy as NumPy has them, whatever the parts it is run in."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from convolutions import reference_conv2d
from scipy.special import log_softmax
from scipy.special import softmax as shares

from sparsenn.errors import NumericError, ShapeError
from sparsenn.layers import Conv2d, Flatten, Identity, Linear, MaxPool2d, ReLU, Softmax
from sparsenn.model import Model
from sparsenn.network import Network
from sparsenn.training import TrainingData, evaluate, resize_bilinear, run_model
from sparsenn.training import run_rows as training_rows

RNG = np.random.default_rng(17)
CONVOLUTION = Conv2d(RNG.normal(size=(3, 1, 3, 3)), RNG.normal(size=3), ReLU())
DENSE = Linear(RNG.normal(size=(48, 5)), RNG.normal(size=5), Identity())
FRONT = (CONVOLUTION, MaxPool2d((2, 2)), Flatten(), DENSE)
"""Of 1 × 10 × 10 pixels; 3 × 8 × 8 after the convolution, 3 × 4 × 4 after the pool."""


def model(softmax: bool = True, loss: str = "cross_entropy", resize: str | None = "bilinear") -> Model:
    layers = (*FRONT, Softmax()) if softmax else FRONT
    return Model(Network(layers, (1, 10, 10)), loss, loss == "cross_entropy", {}, resize)


def data(rows: int = 90, side: int = 7) -> TrainingData:
    rng = np.random.default_rng(3)
    pixels = rng.integers(0, 256, (rows, side * side)) / np.float32(255)
    return TrainingData.of_labels(pixels, rng.integers(0, 5, rows), 5, (1, side, side))


def scores(images: np.ndarray) -> np.ndarray:
    """What the dense layer gives for images of the model's size, in float64."""
    maps = reference_conv2d(images[:, None], CONVOLUTION.weights, CONVOLUTION.bias, lambda z: np.maximum(z, 0))
    pooled = np.max([maps[:, :, down::2, across::2] for down in (0, 1) for across in (0, 1)], axis=0)
    weights, bias = DENSE.weights.astype(np.float64), DENSE.bias_vector().astype(np.float64)
    return pooled.reshape(len(images), -1) @ weights + bias


def enlarged(given: TrainingData) -> np.ndarray:
    side = given.image[1]
    return resize_bilinear(given.inputs.reshape(-1, side, side), 10, 10)


@pytest.mark.parametrize("device", ["cpu", "reference"])
@pytest.mark.parametrize("softmax", [False, True])
def test_classes(device: str, softmax: bool) -> None:
    given = data()
    expected = scores(enlarged(given))
    found = run_model(model(softmax), given, device=device)
    np.testing.assert_allclose(found.outputs, shares(expected, axis=1) if softmax else expected, rtol=2e-5, atol=2e-5)
    right = given.targets == 1
    assert found.evaluation.value == pytest.approx(-log_softmax(expected, axis=1)[right].mean(), rel=1e-5)
    assert (found.evaluation.rows, found.evaluation.loss) == (90, "cross_entropy")
    assert found.evaluation.accuracy == (expected.argmax(1) == given.targets.argmax(1)).mean()
    np.testing.assert_array_equal(found.predicted, expected.argmax(1))
    assert found.enlarged
    assert [layer.layer for layer in found.statistics] == list(range(1, 5 + softmax))
    assert all(layer.rows == 90 for layer in found.statistics)


@pytest.mark.parametrize("softmax", [False, True])
def test_evaluate_says_the_same(softmax: bool) -> None:
    given = data(side=10)
    found = run_model(model(softmax), given, device="reference").evaluation
    network = model(softmax).network
    other = evaluate(network, given.inputs, given.targets, "cross_entropy", "reference")
    assert (other.rows, other.accuracy) == (found.rows, found.accuracy)
    assert other.value == pytest.approx(found.value)


def test_numbers() -> None:
    given = data()
    targets = np.random.default_rng(8).normal(size=(90, 5)).astype(np.float32)
    given = TrainingData(given.inputs, targets, image=given.image)
    found = run_model(model(softmax=False, loss="mse"), given, device="cpu")
    assert found.evaluation.value == pytest.approx(((scores(enlarged(given)) - targets) ** 2).mean(), rel=1e-5)
    assert found.evaluation.accuracy is None


def test_images_of_the_models_size_are_taken_as_they_are() -> None:
    given = data(side=10)
    for resize in (None, "bilinear"):
        found = run_model(model(resize=resize), given, device="cpu")
        assert not found.enlarged
        expected = scores(given.inputs.reshape(-1, 10, 10))
        np.testing.assert_array_equal(found.predicted, expected.argmax(1))
    rows = TrainingData(given.inputs, given.targets, True)
    assert run_model(model(), rows, device="cpu").evaluation == found.evaluation


@pytest.mark.parametrize(("numbers", "batch_size"), [(700, None), (700, 3), (1, None), (1, 50), (10**6, 40)])
def test_parts_change_nothing(monkeypatch: pytest.MonkeyPatch, numbers: int, batch_size: int | None) -> None:
    given = data()
    whole = run_model(model(), given, device="reference")
    monkeypatch.setattr(training_rows, "_NUMBERS", numbers)
    told: list[tuple[str, int, int]] = []
    how = {"device": "reference", "batch_size": batch_size}
    parts = run_model(model(), given, **how, progress=lambda *step: told.append(step))
    np.testing.assert_allclose(parts.outputs, whole.outputs, rtol=1e-12)
    assert parts.evaluation.accuracy == whole.evaluation.accuracy
    assert told[-1][1:] == (90, 90)
    assert [done for _, done, _ in told] == sorted({done for _, done, _ in told})
    for one, other in zip(parts.statistics, whole.statistics, strict=True):
        for field in fields(one):
            if field.name == "density":
                assert one.density == pytest.approx(other.density)
            elif field.name not in ("seconds", "estimate"):
                assert getattr(one, field.name) == getattr(other, field.name)
    assert parts.plan.inputs == 90
    if batch_size is not None:
        assert parts.plan.batch_size == batch_size
        assert f"of up to {batch_size}" in str(parts.plan)
    elif numbers < 1000:
        assert len(parts.plan.batches) == len(told)


def test_memory_limit_is_obeyed() -> None:
    found = run_model(model(), data(), device="cpu", memory_limit=40_000)
    assert 1 <= found.plan.batch_size < 90
    assert found.plan.options.memory_limit == 40_000


@pytest.mark.parametrize(
    ("given", "changes", "told"),
    [
        (data(side=11), {}, r"1 channel of 11 × 11 pixels; the model takes 1 channel of 10 × 10 pixels, or smaller"),
        (data(side=7), {"resize": None}, "and does not enlarge images"),
        (TrainingData(data().inputs, data().targets, True), {}, r"rows hold 49 numbers; the model takes rows of 100"),
        (TrainingData(np.ones((2, 98)), np.eye(5)[:2], True, (2, 7, 7)), {}, "2 channels of 7 × 7"),
        (TrainingData(np.ones((2, 100)), np.eye(5)[:2], True, (1, 4, 25)), {}, "1 channel of 4 × 25"),
        (TrainingData(np.ones((2, 100)), np.ones((2, 3))), {}, "targets have 3 columns; the model gives 5"),
    ],
)
def test_data_that_does_not_fit(given: TrainingData, changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ShapeError, match=told):
        run_model(model(**changes), given, device="cpu")


def test_outputs_that_are_no_numbers_are_told() -> None:
    huge = Linear(np.full((2, 2), 3e38), None, Identity())
    network = Network((huge, Linear(np.array([[1.0, 1.0], [-1.0, 1.0]]), None, Identity())))
    inputs = np.array([[0.0, 0.0], [1.0, 1.0]])
    with pytest.raises(NumericError, match="outputs of row 2 are not finite"), np.errstate(all="ignore"):
        run_model(Model(network, "mse", False), TrainingData(inputs, inputs), device="cpu")
