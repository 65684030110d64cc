"""The loop over epochs: order of rows, losses, validation, checkpoints."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from sparsenn.backends.kernel_records import Kernel
from sparsenn.backends.trainer import Evaluation, Trainer, TrainingProblem, TrainingResult
from sparsenn.errors import InputError, NumericError, ShapeError, UsageError, unknown_name
from sparsenn.formats import Scaling
from sparsenn.formats.arrays import real_number, size
from sparsenn.io.hdf5.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from sparsenn.layers import Activation, Identity, Linear, activation_named
from sparsenn.layers.activation_names import check_activation
from sparsenn.model import Model
from sparsenn.network import Network
from sparsenn.runtime.progress import Progress, ProgressOption, shown_progress, silent
from sparsenn.runtime.spans import span
from sparsenn.runtime.storage import check_path
from sparsenn.runtime.timing import Timer
from sparsenn.training.choice import Choice, choose
from sparsenn.training.data import TrainingData
from sparsenn.training.evaluation import baseline_of, evaluate, evaluate_sampled
from sparsenn.training.initial import initial_layers
from sparsenn.training.rows import read_data

SCALES = ("standard", "none")  # what may be done to inputs before the first layer


@dataclass(frozen=True)
class Epoch:
    """What is reported of an epoch: its number, counted from 1, of how many, its loss and its rows a second."""

    number: int
    total: int
    loss: float
    rows_per_second: float
    validation: Evaluation | None


@np.errstate(all="ignore")
def train(
    data: TrainingData | str | os.PathLike[str],
    *,
    hidden: Sequence[int] = (),
    activation: str | Activation = "relu",
    output_activation: str | Activation = "none",
    epochs: int = 100,
    batch_size: int = 64,
    learning_rate: float = 0.01,
    momentum: float = 0.0,
    loss: str | None = None,
    validation: TrainingData | str | os.PathLike[str] | None = None,
    validate_every: int = 1,
    seed: int = 0,
    device: str = "auto",
    kernel: str = "auto",
    precision: str = "float32",
    scale: str = "none",
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: float = 0.0,
    resume: bool = False,
    report: Callable[[Epoch], None] | None = None,
    progress: ProgressOption = None,
) -> TrainingResult:
    """Train a new MLP by mini-batch gradient descent with momentum.

    It begins with random parameters, or from a checkpoint: the training of a network made elsewhere is not continued.
    The same data, options, kernel and machine give the same bits. Rows come in a new order each epoch, from the same
    stream of random numbers as the initial parameters.

    Parameters
    ----------
    data : TrainingData, str or path-like
        Samples and targets, or a file that `read_data` reads.
    hidden : sequence of int, optional
        Widths of the hidden layers.
    activation : str or Activation, default "relu"
        After hidden layers: The name of one that can be trained, such as relu, sigmoid, tanh or none; or an activation.
    output_activation : str or Activation, default "none"
        After the last layer, likewise.
    epochs : int, default 100
        Passes over all rows, those before a resumption included.
    batch_size : int, default 64
        Samples of a mini-batch; the last of an epoch may be smaller.
    learning_rate : float, default 0.01
        As in v = momentum·v - learning_rate·gradient, w = w + v.
    momentum : float, default 0
        As above.
    loss : str, optional
        The loss: mse or cross_entropy; the latter for classes and the former for others unless given.
    validation : TrainingData, str or path-like, optional
        Data that are evaluated, not trained with.
    validate_every : int, default 1
        Epochs between two evaluations; 0 for one at the end only. The last epoch is evaluated always.
    seed : int, default 0
        Seed of the random numbers (NumPy's PCG64).
    device : str, default "auto"
        What computes: auto, cpu, cuda, cuda:i or reference.
    kernel : str, default "auto"
        How it computes; see `sparsenn.training.choice`.
    precision : str, default "float32"
        The precision of products; see `sparsenn.training.choice`.
    scale : str, default "none"
        "standard" gives each column of inputs the mean 0 and the deviation 1 first, and each of targets, too, where
        they are no classes and the last layer has no activation; "none" leaves them as they are. The result's `scaling`
        belongs into the model (`trained_model`); that of targets is undone by the last layer.
    checkpoint : str or path-like, optional
        File that holds the state, rewritten as a whole, also at the end.
    checkpoint_every : float, default 0
        Seconds at least from one writing of the checkpoint to the next.
    resume : bool, default False
        Go on from the checkpoint, to the same bits as if there had been no interruption; begin where there is none yet.
    report : callable, optional
        Called after each epoch: `report(epoch)`.
    progress : callable or bool, optional
        As `sparsenn.Session.run` takes it; called with the epochs done. With a `report`, none unless asked for.

    Returns
    -------
    TrainingResult
        The network, its losses, and what it took.

    Raises
    ------
    UsageError
        An option is out of its range or does not go with another, the checkpoint is of another training, or it exists
        already and is not to be resumed.
    NumericError
        The loss or a parameter became NaN or infinite; the checkpoint is the last one before.
    ShapeError, InputError, DeviceError, ResourceError
        The data do not fit together or cannot be read, the device is not there, or a file cannot be written.
    """
    epochs, seed = size(epochs, "the number of epochs"), size(seed, "the seed", 0)
    validate_every = size(validate_every, "validate_every", 0)
    if not real_number(checkpoint_every, "checkpoint_every") >= 0:
        raise UsageError(f"a checkpoint every {checkpoint_every:g} seconds is not possible")
    if checkpoint is not None:
        check_path(checkpoint, "the checkpoint")
    if report is not None and not callable(report):
        raise UsageError(f"the report is {report!r}; give a function of an Epoch")
    choice = choose(device, kernel, precision)
    generator = np.random.Generator(np.random.PCG64(seed))
    if scale not in SCALES:
        raise unknown_name("scale", str(scale), SCALES)
    all_data = data if isinstance(data, TrainingData) else read_data(data)
    scaling = Scaling.standard(all_data.inputs) if scale == "standard" else None
    rows = _scaled(all_data, scaling)
    last = _activation(output_activation)
    undone = Scaling.standard(all_data.targets) if scaling and not all_data.classes and last == Identity() else None
    wanted = rows.targets if undone is None else undone.apply(rows.targets)
    widths = (rows.inputs.shape[1], *_hidden(hidden), rows.targets.shape[1])
    layers = initial_layers(widths, _activation(activation), last, generator)
    kind = loss or ("cross_entropy" if rows.classes else "mse")
    if kind == "cross_entropy" and not rows.classes:
        raise UsageError("cross_entropy is a loss for classes; the targets are numbers (--classes makes them classes)")
    problem = TrainingProblem(layers, rows.inputs, wanted, kind, batch_size, learning_rate, momentum)
    held_out = _validation(validation, all_data, scaling)
    if checkpoint is not None and choice.backend.device == "reference":
        raise UsageError("the reference computes in float64, which a checkpoint cannot hold; leave out --checkpoint")
    timer = Timer()
    entry, trainer = choice.start(problem)
    state = _State(generator)
    options = _options(problem, all_data, held_out, seed, choice, entry)
    if scaling is not None:
        options["scale"] = scale
    if resume and checkpoint is None:
        raise UsageError("there is nothing to resume from: name the checkpoint's file (--checkpoint)")
    if checkpoint is not None and Path(checkpoint).exists():
        _resume(state, trainer, checkpoint, resume, options, epochs)
    run = _Run(problem, rows, held_out, trainer, state, options, checkpoint, checkpoint_every, undone, timer)
    with shown_progress(silent if report is not None and progress is None else progress) as shown:
        run.until(epochs, validate_every, report, shown)
    network = run.network()
    return TrainingResult(
        network=network,
        loss=kind,
        classes=rows.classes,
        losses=tuple(state.losses),
        validation=tuple(state.validation),
        rows=rows.rows,
        device=choice.backend.description,
        kernel=entry.name,
        precision=choice.precision,
        first_epoch=state.first,
        seconds=run.seconds,
        options=options,
        scaling=scaling,
        target_scaling=undone,
        evaluation=evaluate_sampled(network, rows, kind),
        baseline=baseline_of(rows, held_out or rows, kind),
        compile_seconds=timer.seconds().compile,
    )


def trained_model(result: TrainingResult, data: TrainingData, provenance: dict[str, str] | None = None) -> Model:
    """Return what was trained as a model that takes rows as the training data were before they were scaled.

    Parameters
    ----------
    result : TrainingResult
        What `train` returned.
    data : TrainingData
        What it was trained on.
    provenance : dict of str to str, optional
        How the model was made, in words and figures.

    Returns
    -------
    Model
        What `write_model` writes.
    """
    return Model(
        result.network,
        result.loss,
        result.classes,
        provenance or {},
        class_names=data.class_names,
        encoding=data.encoding,
        scaling=result.scaling,
    )


@dataclass
class _State:
    """What an epoch changes, besides the trainer."""

    generator: np.random.Generator
    losses: list[float] = field(default_factory=list)
    validation: list[tuple[int, Evaluation]] = field(default_factory=list)
    first: int = 0


@dataclass
class _Run:
    """One process's part of a training."""

    problem: TrainingProblem
    data: TrainingData
    held_out: TrainingData | None
    trainer: Trainer
    state: _State
    options: dict[str, object]
    path: str | os.PathLike[str] | None
    interval: float
    undone: Scaling | None
    timer: Timer
    seconds: float = 0.0
    saved: float = field(default=-math.inf)

    def until(
        self, epochs: int, validate_every: int, report: Callable[[Epoch], None] | None, progress: Progress
    ) -> None:
        """Train up to a number of epochs in all."""
        if not self.state.losses:
            self._save()
        for number in range(len(self.state.losses) + 1, epochs + 1):
            seconds = self._epoch(number)
            last = number == epochs
            found = self._validate(number) if last or (validate_every and number % validate_every == 0) else None
            if last or time.monotonic() - self.saved >= self.interval:
                self._save()
            speed = self.data.rows / max(seconds, 1e-9)
            if report is not None:
                report(Epoch(number, epochs, self.state.losses[-1], speed, found))
            progress("epochs", number, epochs)

    def network(self) -> Network:
        """Return the network as it is now, in the units of the data: a scaling of targets undone."""
        layers, undone = self.layers(), self.undone
        if undone is None:
            return Network(layers)
        last = layers[-1]
        bias = last.bias_vector() * undone.deviation + undone.mean
        return Network((*layers[:-1], replace(last, weights=last.weights * undone.deviation, bias=bias)))

    def layers(self) -> tuple[Linear, ...]:
        """Return the parameters, all of them finite."""
        try:
            return self.trainer.layers()
        except InputError as error:
            raise self._diverged(f"parameters are no longer finite after epoch {len(self.state.losses)}") from error

    def _epoch(self, number: int) -> float:
        start = self.timer.now()
        order = self.state.generator.permutation(self.data.rows)
        with span(f"epoch {number}", "train", rows=self.data.rows):
            loss = self.trainer.epoch(order)
        seconds = self.timer.now() - start
        if not math.isfinite(loss):
            raise self._diverged(f"the loss became {loss} in epoch {number}")
        self.state.losses.append(loss)
        self.seconds += seconds
        return seconds

    def _validate(self, number: int) -> Evaluation | None:
        if self.held_out is None:
            return None
        data = self.held_out
        with span("evaluate", "train", rows=data.rows):
            found = evaluate(self.network(), data.inputs, data.targets, self.problem.loss, "cpu", data.classes)
        if not math.isfinite(found.value):
            raise self._diverged(f"the validation loss became {found.value} in epoch {number}")
        self.state.validation.append((number, found))
        return found

    def _save(self) -> None:
        if self.path is None:
            return
        records = tuple(
            (epoch, found.value, math.nan if found.accuracy is None else found.accuracy)
            for epoch, found in self.state.validation
        )
        generator: Any = self.state.generator.bit_generator.state
        losses = tuple(self.state.losses)
        layers, velocities = self.layers(), self.trainer.velocities()
        if not all(np.isfinite(array).all() for pair in velocities for array in pair):
            raise self._diverged(f"velocities are no longer finite after epoch {len(losses)}")
        with span("checkpoint", "write"):
            write_checkpoint(self.path, Checkpoint(self.options, layers, velocities, generator, losses, records))
        self.saved = time.monotonic()

    def _diverged(self, what: str) -> NumericError:
        state = "" if self.path is None else f"; {os.fspath(self.path)} holds the state before that"
        return NumericError(f"{what}: the training diverged{state}; try a lower learning rate than {self._rate}")

    @property
    def _rate(self) -> str:
        return f"{self.problem.learning_rate:g}"


def _resume(
    state: _State,
    trainer: Trainer,
    path: str | os.PathLike[str],
    wanted: bool,
    options: dict[str, object],
    epochs: int,
) -> None:
    """Bring state and trainer to where a checkpoint is, which must be of the same training."""
    if not wanted:
        raise UsageError(f"{os.fspath(path)} exists already: resume from it (--resume), or remove it to start anew")
    found = read_checkpoint(path)
    names = [name for name in {**options, **found.options} if options.get(name) != found.options.get(name)]
    if names:
        differences = "; ".join(
            f"{name if name in options else repr(name)} {found.options.get(name)!r}, now {options.get(name)!r}"
            for name in names
        )
        raise UsageError(f"{os.fspath(path)} belongs to another training: {differences}")
    if len(found.losses) > epochs:
        raise UsageError(f"{os.fspath(path)} has {len(found.losses)} epochs done, more than the {epochs} asked for")
    shapes = [(layer.weights.shape, layer.activation) for layer in found.layers]
    if shapes != [(layer.weights.shape, layer.activation) for layer in trainer.layers()]:
        raise InputError(f"{os.fspath(path)}: its layers do not match its options; the file is damaged")
    trainer.restore(found.layers, found.velocities)
    state.generator.bit_generator.state = found.generator
    state.losses, state.first = list(found.losses), len(found.losses)
    loss, rows = str(options["loss"]), int(str(options["validation rows"] or 0))
    state.validation = [
        (epoch, Evaluation(rows, loss, value, None if math.isnan(accuracy) else accuracy))
        for epoch, value, accuracy in found.validation
    ]


def _options(
    problem: TrainingProblem,
    data: TrainingData,
    held_out: TrainingData | None,
    seed: int,
    choice: Choice,
    entry: Kernel,
) -> dict[str, object]:
    """Everything that decides the bits of the result, as plain values."""
    return {
        "widths": [data.inputs.shape[1], *(layer.outputs for layer in problem.layers)],
        "activations": [str(layer.activation) for layer in problem.layers],
        "loss": problem.loss,
        "batch size": problem.batch_size,
        "learning rate": problem.learning_rate,
        "momentum": problem.momentum,
        "seed": seed,
        "device": choice.backend.device,
        "kernel": entry.name,
        "rows": data.rows,
        "data": data.digest(),
        "validation rows": None if held_out is None else held_out.rows,
        "validation data": None if held_out is None else held_out.digest(),
    }


def _scaled(data: TrainingData, scaling: Scaling | None) -> TrainingData:
    return data if scaling is None else replace(data, inputs=scaling.apply(data.inputs))


def _validation(
    source: TrainingData | str | os.PathLike[str] | None, data: TrainingData, scaling: Scaling | None
) -> TrainingData | None:
    if source is None:
        return None
    width = data.targets.shape[1]
    if isinstance(source, TrainingData):
        found = source
    else:
        columns, outputs = (1, width) if data.classes else (width, None)
        found = read_data(source, classes=data.classes, targets=columns, outputs=outputs, like=data)
    shape, needed = (found.inputs.shape[1], found.targets.shape[1]), (data.inputs.shape[1], width)
    if shape != needed or found.classes != data.classes:
        raise ShapeError(f"validation data have {shape} inputs and outputs; the training data have {needed}")
    return _scaled(found, scaling)


def _activation(activation: str | Activation) -> Activation:
    if not isinstance(activation, str):
        check_activation(activation)
        return activation
    return activation_named("identity" if activation == "none" else activation)


def _hidden(widths: Sequence[int]) -> tuple[int, ...]:
    """Return the widths of hidden layers as Python's integers."""
    if isinstance(widths, str) or not isinstance(widths, Sequence | np.ndarray):
        raise UsageError(f"hidden is {widths!r}; give the widths of the hidden layers, such as (64, 32)")
    return tuple(size(width, "a hidden width") for width in widths)
