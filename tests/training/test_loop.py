"""The loop over epochs: what it learns, that it repeats itself bit for bit, resumes, and stops."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sparsenn
from sparsenn.errors import FileFormatError, NumericError, ShapeError, UsageError
from sparsenn.io import read_checkpoint
from sparsenn.layers import Identity, Linear, ReLU
from sparsenn.training import TrainingData, TrainingResult, evaluate, read_data, train
from sparsenn.training.initial import initial_layers


@pytest.fixture(scope="module")
def data() -> TrainingData:
    rng = np.random.default_rng(7)
    inputs = rng.uniform(-1, 1, (300, 4))
    return TrainingData(inputs, np.sin(inputs @ rng.normal(size=(4, 2))))


@pytest.fixture(scope="module")
def classes() -> TrainingData:
    rng = np.random.default_rng(8)
    labels = rng.integers(0, 3, 400)
    return TrainingData.of_labels(rng.normal(size=(400, 5)) + 3 * np.eye(3, 5)[labels], labels)


HOW: dict[str, Any] = {"hidden": (16, 8), "activation": "tanh", "epochs": 6, "batch_size": 32, "device": "cpu"}
HOW |= {"learning_rate": 0.05, "momentum": 0.9}


def bits(result: TrainingResult) -> list[bytes]:
    layers = result.network.layers_of(Linear)
    return [array.tobytes() for layer in layers for array in (layer.weights, layer.bias_vector())]


def test_it_learns_a_function(data: TrainingData) -> None:
    result = train(data, **HOW | {"epochs": 60})
    assert result.losses[-1] < 0.02 * data.targets.var()
    assert (result.loss, result.classes, result.epochs, result.rows, result.first_epoch) == ("mse", False, 60, 300, 0)
    assert result.kernel == "numpy"
    assert result.rows_per_second == pytest.approx(60 * 300 / result.seconds)
    outputs = data.inputs.astype(np.float64)
    for layer in result.network.layers_of(Linear):
        outputs = layer.activation(outputs @ layer.weights + layer.bias_vector())
    found = evaluate(result.network, data.inputs, data.targets, "mse", "cpu")
    assert found.value == pytest.approx(((outputs - data.targets) ** 2).mean(), rel=1e-4)
    assert found.accuracy is None


def test_it_learns_classes(classes: TrainingData) -> None:
    result = train(classes, **HOW | {"activation": "relu", "epochs": 20}, validation=classes, validate_every=8)
    assert result.loss == "cross_entropy"
    assert [epoch for epoch, _ in result.validation] == [8, 16, 20]
    last = result.validation[-1][1]
    assert last.accuracy > 0.95
    assert last == evaluate(result.network, classes.inputs, classes.targets, "cross_entropy", "cpu")


@pytest.mark.parametrize("kernel", ["numpy", "numba"])
def test_a_seed_gives_the_same_bits(data: TrainingData, kernel: str) -> None:
    first, again = train(data, **HOW, kernel=kernel), train(data, **HOW, kernel=kernel)
    assert first.losses == again.losses
    assert bits(first) == bits(again)
    other = train(data, **HOW, kernel=kernel, seed=1)
    assert other.losses != first.losses


def test_kernels_follow_the_reference(data: TrainingData) -> None:
    reference = train(data, **HOW | {"device": "reference"})
    assert reference.precision == "float64"
    expected = reference.losses
    for kernel in ("numpy", "numba"):
        np.testing.assert_allclose(train(data, **HOW, kernel=kernel).losses, expected, rtol=1e-4)


@pytest.mark.parametrize("kernel", ["numpy", "numba"])
def test_resumed_equals_uninterrupted(data: TrainingData, tmp_path: Path, kernel: str) -> None:
    whole = train(data, **HOW, kernel=kernel, validation=data)
    part = {"kernel": kernel, "validation": data, "checkpoint": tmp_path / "state.h5"}
    train(data, **HOW | {"epochs": 2}, **part)
    resumed = train(data, **HOW, **part, resume=True)
    assert bits(resumed) == bits(whole)
    assert resumed.losses == whole.losses
    assert resumed.validation == whole.validation
    assert (resumed.first_epoch, resumed.epochs) == (2, 6)
    over = train(data, **HOW, **part, resume=True)
    assert bits(over) == bits(whole)
    assert (over.first_epoch, over.rows_per_second) == (6, None)


class StoppedError(Exception):
    pass


def test_interruption_in_the_middle(data: TrainingData, tmp_path: Path) -> None:
    def stop(epoch: Any) -> None:
        if epoch.number == 3:
            raise StoppedError

    path = tmp_path / "state.h5"
    with pytest.raises(StoppedError):
        train(data, **HOW, checkpoint=path, report=stop)
    assert len(read_checkpoint(path).losses) == 3
    resumed = train(data, **HOW, checkpoint=path, resume=True)
    assert bits(resumed) == bits(train(data, **HOW))


def test_checkpoints_by_time(data: TrainingData, tmp_path: Path) -> None:
    path, seen = tmp_path / "state.h5", []
    how = HOW | {"checkpoint": path, "checkpoint_every": 3600.0}
    train(data, **how, report=lambda epoch: seen.append(len(read_checkpoint(path).losses)))
    assert seen == [0, 0, 0, 0, 0, 6]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"learning_rate": 0.1}, "learning rate 0.05, now 0.1"),
        ({"momentum": 0.0}, "momentum 0.9, now 0.0"),
        ({"batch_size": 16}, "batch size 32, now 16"),
        ({"hidden": (16, 9)}, r"widths \[4, 16, 8, 2\], now \[4, 16, 9, 2\]"),
        ({"activation": "relu"}, "activations"),
        ({"seed": 4}, "seed 0, now 4"),
        ({"kernel": "numba"}, "kernel 'numpy', now 'numba'"),
        ({"epochs": 1}, "2 epochs done, more than the 1 asked for"),
        ({"resume": False}, "exists already"),
    ],
)
def test_checkpoint_of_another_training(data: TrainingData, tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    path = tmp_path / "state.h5"
    train(data, **HOW | {"epochs": 2}, checkpoint=path)
    before = path.read_bytes()
    with pytest.raises(UsageError, match=told):
        train(data, **{**HOW, "checkpoint": path, "resume": True, **changes})
    assert path.read_bytes() == before


def test_checkpoint_of_other_data(data: TrainingData, tmp_path: Path) -> None:
    path = tmp_path / "state.h5"
    train(data, **HOW | {"epochs": 1}, checkpoint=path)
    inputs = data.inputs.copy()
    inputs[17, 2] = np.nextafter(inputs[17, 2], 2)
    with pytest.raises(UsageError, match=r"another training: data '[0-9a-f]{64}'"):
        train(TrainingData(inputs, data.targets), **HOW, checkpoint=path, resume=True)


def test_resume_from_nothing(data: TrainingData, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--checkpoint"):
        train(data, **HOW, resume=True)
    path = tmp_path / "state.h5"
    first, again = (train(data, **HOW, checkpoint=path, resume=True) for _ in range(2))
    assert (first.first_epoch, again.first_epoch) == (0, first.epochs)
    assert first.losses == again.losses == train(data, **HOW).losses


def test_divergence_keeps_the_last_good_checkpoint(data: TrainingData, tmp_path: Path) -> None:
    path = tmp_path / "state.h5"
    with pytest.raises(NumericError, match=r"diverged; .*state.h5 .* 1e\+09"):
        train(data, **HOW | {"activation": "relu", "learning_rate": 1e9, "epochs": 50}, checkpoint=path)
    found = read_checkpoint(path)
    assert np.isfinite(found.losses).all()
    assert all(np.isfinite(layer.weights).all() for layer in found.layers)


def test_validation_data_of_another_shape(data: TrainingData, classes: TrainingData) -> None:
    for other in (classes, TrainingData(data.inputs[:, :3], data.targets)):
        with pytest.raises(ShapeError, match="validation data have"):
            train(data, **HOW, validation=other)


def test_evaluations_that_are_refused(classes: TrainingData) -> None:
    network = sparsenn.Network(initial_layers((5, 7, 3), ReLU(), Identity(), np.random.default_rng(2)))
    with pytest.raises(ShapeError):
        evaluate(network, classes.inputs[:, :4], classes.targets, "mse", "cpu")
    with pytest.raises(UsageError, match="unknown loss"):
        evaluate(network, classes.inputs, classes.targets, "hinge", "cpu")


def test_damaged_checkpoints(data: TrainingData, tmp_path: Path) -> None:
    path = tmp_path / "state.h5"
    train(data, **HOW | {"epochs": 1}, checkpoint=path)
    whole = path.read_bytes()
    for cut in (0, 100, len(whole) // 2, len(whole) - 50):
        path.write_bytes(whole[:cut])
        with pytest.raises(FileFormatError, match=r"state\.h5"):
            train(data, **HOW, checkpoint=path, resume=True)


def numbers_of_fann(path: Path) -> TrainingData:
    """Read FANN's text: the number of rows, of inputs and of targets, then each row's inputs and its targets."""
    (rows, inputs, _), numbers = np.split(np.array(path.read_text().split(), np.float32), [3])
    table = numbers.reshape(int(rows), -1)
    return TrainingData(table[:, : int(inputs)], table[:, int(inputs) :])


def test_abalone(shared_data: Path) -> None:
    folder = shared_data / "abalone"
    if not folder.is_dir():
        pytest.skip("there is no abalone")
    data, held_out = (numbers_of_fann(folder / f"abalone.{part}") for part in ("train", "test"))
    assert (data.inputs.shape, data.targets.shape, held_out.inputs.shape) == ((2088, 10), (2088, 1), (2089, 10))
    how: dict[str, Any] = {"hidden": (32, 32), "epochs": 40, "learning_rate": 0.02, "momentum": 0.9}
    result = train(data, **how, validation=held_out, device="cpu")
    with_one = [np.c_[part.inputs, np.ones(part.rows)].astype(np.float64) for part in (data, held_out)]
    linear = with_one[1] @ np.linalg.lstsq(with_one[0], data.targets.astype(np.float64), rcond=None)[0]
    assert result.validation[-1][1].value < 1.05 * ((linear - held_out.targets) ** 2).mean()


def test_some_of_mnist(mnist_folder: Path) -> None:
    data = read_data(mnist_folder / "t10k-images-idx3-ubyte.gz")
    assert (data.inputs.shape, data.targets.shape, data.classes) == ((10_000, 784), (10_000, 10), True)
    assert (data.inputs.min(), data.inputs.max()) == (0, 1)
    parts = [TrainingData(data.inputs[part], data.targets[part], True) for part in (slice(3000), slice(3000, 4000))]
    how: dict[str, Any] = {"hidden": (32,), "epochs": 5, "learning_rate": 0.05, "momentum": 0.9, "device": "cpu"}
    result = train(parts[0], **how, validation=parts[1], validate_every=0)
    assert (result.validation[-1][1].accuracy or 0) > 0.85


def test_divergence_in_the_last_update(data: TrainingData) -> None:
    """The loss is finite, as it is taken before the update; the parameters are not."""
    few = TrainingData(data.inputs[:8] * 1e10, data.targets[:8])
    with pytest.raises(NumericError, match="parameters are no longer finite after epoch 1"):
        train(few, epochs=1, learning_rate=1e30, device="cpu")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 0}, "the number of epochs is 0"),
        ({"validate_every": -1}, "validate_every is -1"),
        ({"seed": -1}, "the seed is -1"),
        ({"checkpoint_every": math.nan}, "nan"),
        ({"hidden": (4, 0)}, "a hidden width is 0"),
        ({"activation": "softmax"}, "unknown activation 'softmax'"),
        ({"loss": "cross_entropy"}, "a loss for classes"),
        ({"precision": "int8"}, "unknown precision 'int8'"),
        ({"precision": "tf32"}, r"cpu does not train in tf32 \(it has: float32\)"),
        ({"kernel": "nympy"}, "did you mean 'numpy'"),
        ({"kernel": "numpy", "precision": "float16"}, "computes in float32, not in float16"),
        ({"device": "abacus"}, "unknown device"),
        ({"device": "reference", "checkpoint": "x.h5"}, "reference computes in float64"),
    ],
)
def test_options_that_do_not_go(data: TrainingData, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        train(data, **{**HOW, **changes})


def test_data_that_are_no_file_and_no_data(data: TrainingData) -> None:
    for rows, held_out in ((np.ones((4, 3)), None), (data, np.ones((4, 3)))):
        with pytest.raises(UsageError, match=r"an ndarray; .*sparsenn\.TrainingData"):
            train(rows, **HOW, validation=held_out)
