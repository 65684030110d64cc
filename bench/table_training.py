"""Trainings of MLPs: losses, accuracy and time by epoch, ours beside scikit-learn and PyTorch."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from cases import data_folder
from record import Case, Row, Run, Table
from timing import summary

from sparsenn.layers import Identity, ReLU
from sparsenn.studies.ladder import ladder_for
from sparsenn.training import TrainingData, read_data, train
from sparsenn.training.initial import initial_layers

HIDDEN = (500, 500, 500)
ABALONE: dict[str, Any] = {"hidden": HIDDEN, "activation": "relu", "learning_rate": 0.01, "momentum": 0.9}
MNIST: dict[str, Any] = {"hidden": (128,), "activation": "relu", "learning_rate": 0.05, "momentum": 0.9}
BATCH = 64
WARM_EPOCHS = 3

NAMES = {"abalone": "abalone, 10-500-500-500-1", "mnist": "MNIST, 784-128-10"}


def row_of(method: str, seconds: Sequence[float], losses: Sequence[float], **more: Any) -> Row:
    """Return what a row holds of a method, with all losses and times."""
    timing = summary([1e3 * each for each in seconds])
    return {
        "method": method,
        "epochs": len(losses),
        "epoch_milliseconds": timing.median,
        "spread_milliseconds": timing.spread,
        "first_loss": losses[0],
        "last_loss": losses[-1],
        "test_loss": None,
        "accuracy": None,
        "losses": list(losses),
        "seconds": list(seconds),
    } | more


def ours(problem: str, kernel: str, epochs: int, run: Run) -> Row:
    """Train by our own trainer, with accuracy or loss on the held-out rows after each epoch."""
    data, held_out = data_of(problem, run.options.data)
    seconds: list[float] = []
    result = train(
        data,
        **(ABALONE if problem == "abalone" else MNIST),
        kernel=kernel,
        epochs=epochs,
        batch_size=BATCH,
        device=run.options.device,
        validation=held_out,
        report=lambda epoch: seconds.append(data.rows / epoch.rows_per_second),
    )
    last = result.validation[-1][1]
    by_epoch = [{"epoch": epoch, "loss": each.value, "accuracy": each.accuracy} for epoch, each in result.validation]
    method = f"sparsenn, {result.kernel} ({run.options.device})"
    more = {"test_loss": last.value, "accuracy": last.accuracy, "validation": by_epoch}
    return row_of(method, seconds, result.losses, **more)


def data_of(problem: str, data: Path) -> tuple[TrainingData, TrainingData]:
    """Return rows to train with, and rows held out."""
    folder = data_folder(data, problem)
    if problem == "abalone":
        return read_abalone(folder / "abalone.train"), read_abalone(folder / "abalone.test")
    training, held_out = (read_data(folder / f"{name}-images-idx3-ubyte.gz", outputs=10) for name in ("train", "t10k"))
    return training, held_out


def read_abalone(path: Path) -> TrainingData:
    """Read numbers of rows, inputs and outputs, then a line of inputs and one of outputs per row."""
    numbers = np.array(path.read_text().split(), np.float32)
    rows, inputs, outputs = numbers[:3].astype(int)
    table = numbers[3:].reshape(rows, inputs + outputs)
    return TrainingData(table[:, :inputs], table[:, inputs:])


def scikit_learn(epochs: int, run: Run) -> Row:
    """Train the same network by the same descent; its loss is half the mean squared error, hence twice the rate."""
    from sklearn import __version__
    from sklearn.neural_network import MLPRegressor

    data, held_out = data_of("abalone", run.options.data)
    model = MLPRegressor(
        hidden_layer_sizes=HIDDEN,
        activation=ABALONE["activation"],
        solver="sgd",
        alpha=0.0,
        batch_size=BATCH,
        learning_rate_init=2 * ABALONE["learning_rate"],
        momentum=ABALONE["momentum"],
        nesterovs_momentum=False,
        random_state=0,
    )
    targets, seconds, losses = data.targets[:, 0], [], []
    for _ in range(epochs):
        start = time.perf_counter()
        model.partial_fit(data.inputs, targets)
        seconds.append(time.perf_counter() - start)
        losses.append(2 * float(model.loss_))
    error = float(np.mean((model.predict(held_out.inputs).astype(np.float64) - held_out.targets[:, 0]) ** 2))
    return row_of(f"scikit-learn {__version__}, MLPRegressor", seconds, losses, test_loss=error)


def by_torch(is_graph: bool, epochs: int, run: Run) -> Row:
    """Train the same network by the same descent in PyTorch: launch by launch, or an epoch as one CUDA graph."""
    import torch

    data, held_out = data_of("abalone", run.options.data)
    device = torch.device(run.options.device)
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    source, goal = (torch.tensor(array, device=device) for array in (data.inputs, data.targets))
    inputs, targets = source.clone(), goal.clone()  # a graph reads the rows of an epoch at these addresses
    layers = initial_layers((source.shape[1], *HIDDEN, 1), ReLU(), Identity(), np.random.default_rng(0))
    modules: list[Any] = []
    for layer, (before, after) in zip(layers, pairwise((source.shape[1], *HIDDEN, 1)), strict=True):
        linear = torch.nn.Linear(before, after, device=device)
        with torch.no_grad():
            linear.weight.copy_(torch.tensor(layer.weights.T.copy()))
            linear.bias.zero_()
        modules += [linear, torch.nn.ReLU()]
    model = torch.nn.Sequential(*modules[:-1])
    descent = torch.optim.SGD(model.parameters(), lr=ABALONE["learning_rate"], momentum=ABALONE["momentum"])
    measure, total = torch.nn.MSELoss(), torch.zeros((), dtype=torch.float64, device=device)

    def passes() -> None:
        total.zero_()
        for start in range(0, data.rows, BATCH):
            descent.zero_grad(set_to_none=False)
            batch = slice(start, start + BATCH)
            loss = measure(model(inputs[batch]), targets[batch])
            loss.backward()
            descent.step()
            total.add_(loss.detach().double() * len(inputs[batch]))

    launch: Callable[[], Any] = passes
    if is_graph:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_EPOCHS):
                passes()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            passes()
        launch = graph.replay
    seconds, losses = [], []
    for _ in range(epochs):
        start = time.perf_counter()
        order = torch.randperm(data.rows, device=device)
        inputs.copy_(source[order])
        targets.copy_(goal[order])
        launch()
        losses.append(float(total) / data.rows)
        seconds.append(time.perf_counter() - start)
    with torch.no_grad():
        found = model(torch.tensor(held_out.inputs, device=device)).cpu().numpy()
    error = float(np.mean((found.astype(np.float64) - held_out.targets) ** 2))
    method = f"PyTorch, {'an epoch as one CUDA graph' if is_graph else 'launch by launch'}"
    return row_of(method, seconds, losses, test_loss=error)


def cases(options: argparse.Namespace) -> Iterator[Case]:
    """Yield every trainer of the device on abalone, beside others; and ours on MNIST."""
    epochs, device = options.epochs, options.device
    methods: dict[str, Callable[[Run], Row]] = {
        rung.name: partial(ours, "abalone", rung.name, epochs) for rung in ladder_for("train").rungs[device]
    }
    methods |= {"scikit-learn": partial(scikit_learn, epochs), "torch": partial(by_torch, False, epochs)}
    if device == "cuda":
        methods["torch graph"] = partial(by_torch, True, epochs)
    for name, method in methods.items():
        yield Case(f"abalone-{name}", {"problem": NAMES["abalone"]}, method)
    yield Case("mnist-sparsenn", {"problem": NAMES["mnist"]}, partial(ours, "mnist", "auto", max(1, epochs // 10)))


TABLES = {
    "training": Table(
        title="Training of MLPs, mini-batches of 64",
        columns=[
            ("problem", "problem"),
            ("method", "method"),
            ("epochs", "epochs"),
            ("epoch_milliseconds", "median epoch (ms)", "{:,.2f}"),
            ("spread_milliseconds", "spread (ms)", "{:,.2f}"),
            ("first_loss", "first loss", "{:.4g}"),
            ("last_loss", "last loss", "{:.4g}"),
            ("test_loss", "test loss", "{:.4g}"),
            ("accuracy", "test accuracy", "{:.2%}"),
        ],
        cases=cases,
        notes=[
            "Losses are those of training, averaged over an epoch; spread: interquartile range of the epochs' times."
        ],
        options={"epochs": 100},
        configuration=lambda options: {"abalone": ABALONE, "mnist": MNIST, "batch_size": BATCH, "seed": 0},
        device="cuda",
    )
}
