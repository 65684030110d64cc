"""Trainings of MLPs: losses, accuracy and time by epoch, ours beside scikit-learn, FANN and PyTorch.

Abalone and MNIST are left out where their folders are not named. Where there is a GPU, an epoch of 2,000 random rows is
timed in every trainer of `train`, and in PyTorch, by single launches and as one CUDA graph.
"""

from __future__ import annotations

import argparse
import ctypes
import ctypes.util
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from record import Row, Run, Table, count
from timing import summary

from sparsenn.backends import TrainingProblem, backend_for
from sparsenn.errors import DeviceError, UsageError
from sparsenn.layers import Identity, ReLU
from sparsenn.network import Network
from sparsenn.studies.ladder import ladder_for
from sparsenn.training import TrainingData, evaluate, read_data, train
from sparsenn.training.initial import initial_layers

HIDDEN = (500, 500, 500)
ABALONE: dict[str, Any] = {"hidden": HIDDEN, "activation": "relu", "learning_rate": 0.01, "momentum": 0.9}
MNIST: dict[str, Any] = {"hidden": (128,), "activation": "relu", "learning_rate": 0.05, "momentum": 0.9}
BATCH = 64
RANDOM_ROWS = 2000
RANDOM = "2,000 random rows, 10-500-500-500-1"
WARM_EPOCHS = 3
FANN_BATCH, FANN_SIGMOID = 1, 3
FANN_RATE = 0.1

NAMES = {"abalone": "abalone, 10-500-500-500-1", "mnist": "MNIST, 784-128-10", "random": RANDOM}


@dataclass(frozen=True)
class Cell:
    """A problem and a method: a trainer's name, or that of a peer in `PEERS`."""

    problem: str
    method: str

    def __str__(self) -> str:
        return f"{self.problem}-{self.method}"


def row(problem: str, method: str, seconds: Sequence[float], losses: Sequence[float], **more: Any) -> Row:
    """Return a row of the table, with all losses and times."""
    timing = summary([1e3 * each for each in seconds])
    return {
        "key": f"{problem}, {method}",
        "problem": problem,
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


# ---- Trainings --------------------------------------------------------------------------------------------------


def ours(problem: str, kernel: str | None, run: Run) -> Row:
    """Train by our own trainer, with accuracy or loss on the held-out rows after each epoch."""
    data, held_out = data_of(problem, run)
    settings, epochs = (ABALONE | {"kernel": kernel}, run.options.abalone_epochs)
    if problem == "mnist":
        settings, epochs = MNIST, run.options.mnist_epochs
    seconds: list[float] = []
    result = train(
        data,
        **settings,
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
    return row(NAMES[problem], method, seconds, result.losses, **more)


def data_of(problem: str, run: Run) -> tuple[TrainingData, TrainingData]:
    """Return rows to train with, and rows held out."""
    if problem == "abalone":
        folder = run.options.abalone
        return read_fann(folder / "abalone.train"), read_fann(folder / "abalone.test")
    folder = run.options.mnist
    suffix = ".gz" if (folder / "train-images-idx3-ubyte.gz").is_file() else ""
    files = (f"{name}-images-idx3-ubyte{suffix}" for name in ("train", "t10k"))
    data, held_out = (read_data(folder / file, outputs=10) for file in files)
    return data, held_out


def read_fann(path: Path) -> TrainingData:
    """Read FANN's text: numbers of rows, inputs and outputs, then a line of inputs and one of outputs per row."""
    numbers = np.array(path.read_text().split(), np.float32)
    rows, inputs, outputs = numbers[:3].astype(int)
    table = numbers[3:].reshape(rows, inputs + outputs)
    return TrainingData(table[:, :inputs], table[:, inputs:])


def scikit_learn(run: Run) -> Row:
    """Train the same network by the same descent; its loss is half the mean squared error, hence twice the rate."""
    from sklearn import __version__
    from sklearn.neural_network import MLPRegressor

    data, held_out = data_of("abalone", run)
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
    for _ in range(run.options.abalone_epochs):
        start = time.perf_counter()
        model.partial_fit(data.inputs, targets)
        seconds.append(time.perf_counter() - start)
        losses.append(2 * float(model.loss_))
    error = float(np.mean((model.predict(held_out.inputs).astype(np.float64) - held_out.targets[:, 0]) ** 2))
    return row(NAMES["abalone"], f"scikit-learn {__version__}, MLPRegressor", seconds, losses, test_loss=error)


def fann(run: Run) -> Row:
    """Train by FANN's batch mode: one update an epoch, sigmoids everywhere.

    Raises
    ------
    FileNotFoundError
        libfann is not installed, or cannot read the data.
    """
    place, folder = ctypes.util.find_library("fann"), run.options.abalone
    if place is None:
        raise FileNotFoundError("FANN (libfann) is not installed")
    data, _ = data_of("abalone", run)
    library = ctypes.CDLL(place)
    library.fann_create_standard_array.restype = ctypes.c_void_p
    library.fann_read_train_from_file.restype = ctypes.c_void_p
    library.fann_train_epoch.restype = library.fann_test_data.restype = ctypes.c_float
    widths = (data.inputs.shape[1], *HIDDEN, data.targets.shape[1])
    network = ctypes.c_void_p(library.fann_create_standard_array(len(widths), (ctypes.c_uint * len(widths))(*widths)))
    files = [
        ctypes.c_void_p(library.fann_read_train_from_file(str(folder / f"abalone.{name}").encode()))
        for name in ("train", "test")
    ]
    if not (network and all(files)):
        raise FileNotFoundError("FANN cannot read the data")
    library.fann_set_training_algorithm(network, FANN_BATCH)
    library.fann_set_activation_function_hidden(network, FANN_SIGMOID)
    library.fann_set_activation_function_output(network, FANN_SIGMOID)
    library.fann_set_learning_rate(network, ctypes.c_float(FANN_RATE))
    seconds, losses = [], []
    for _ in range(run.options.abalone_epochs):
        start = time.perf_counter()
        losses.append(float(library.fann_train_epoch(network, files[0])))
        seconds.append(time.perf_counter() - start)
    error = float(library.fann_test_data(network, files[1]))
    for loaded in files:
        library.fann_destroy_train(loaded)
    library.fann_destroy(network)
    return row(NAMES["abalone"], "FANN, batch mode, sigmoid", seconds, losses, test_loss=error)


# ---- Single epochs on a GPU -------------------------------------------------------------------------------------


def random_problem() -> TrainingProblem:
    """Return 10-500-500-500-1 on 2,000 random rows."""
    rng = np.random.default_rng(0)
    layers = initial_layers((10, *HIDDEN, 1), ReLU(), Identity(), rng)
    inputs = rng.random((RANDOM_ROWS, 10), np.float32)
    return TrainingProblem(layers, inputs, rng.random((RANDOM_ROWS, 1), np.float32), "mse", BATCH, 0.01, 0.0)


def order_of_rows() -> np.ndarray:
    return np.random.default_rng(1).permutation(RANDOM_ROWS)


def trainer_epochs(kernel: str, run: Run) -> Row:
    """Time epochs of a trainer on the GPU."""
    problem, order = random_problem(), order_of_rows()
    (entry,) = (entry for entry in ladder_for("train").rungs["cuda"] if entry.name == kernel)
    trainer = entry.launch(problem, getattr(backend_for("cuda"), "index", 0))
    found = timed_epochs(f"sparsenn, {kernel} (cuda)", lambda: trainer.epoch(order), run)
    network = Network(tuple(trainer.layers()))
    score = evaluate(network, problem.inputs, problem.targets, problem.loss, "cpu")
    return found | {"test_loss": score.value}


def timed_epochs(method: str, epoch: Callable[[], float], run: Run) -> Row:
    """Time epochs by the wall clock, each to the loss on the host."""
    losses: list[float] = []
    timing = run.timer.time(lambda: losses.append(epoch()), runs=run.options.runs, warm_up=WARM_EPOCHS)
    found = row(RANDOM, method, [timing.median / 1e3], losses)
    return found | {"spread_milliseconds": timing.spread}


def torch_epochs(is_graph: bool, run: Run) -> Row:
    """Time the same descent in PyTorch: launch by launch, or a whole epoch as one CUDA graph."""
    import torch

    problem, order, device = random_problem(), order_of_rows(), torch.device("cuda")
    torch.backends.cuda.matmul.allow_tf32 = False
    inputs, targets = (torch.tensor(array[order], device=device) for array in (problem.inputs, problem.targets))
    modules: list[Any] = []
    for number, (before, after) in enumerate(pairwise((10, *HIDDEN, 1))):
        linear = torch.nn.Linear(before, after, device=device)
        with torch.no_grad():
            linear.weight.copy_(torch.tensor(problem.layers[number].weights.T.copy()))
            linear.bias.zero_()
        modules += [linear, torch.nn.ReLU()]
    model = torch.nn.Sequential(*modules[:-1])
    descent, measure = torch.optim.SGD(model.parameters(), lr=problem.learning_rate), torch.nn.MSELoss()
    total = torch.zeros((), dtype=torch.float64, device=device)

    def passes() -> None:
        total.zero_()
        for start in range(0, RANDOM_ROWS, BATCH):
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

    def epoch() -> float:
        launch()
        return float(total) / RANDOM_ROWS

    return timed_epochs(f"PyTorch, {'an epoch as one CUDA graph' if is_graph else 'launch by launch'}", epoch, run)


# ---- The table --------------------------------------------------------------------------------------------------

PEERS: dict[tuple[str, str], Callable[[Run], Row]] = {
    ("abalone", "scikit-learn"): scikit_learn,
    ("abalone", "fann"): fann,
    ("random", "torch"): lambda run: torch_epochs(False, run),
    ("random", "torch graph"): lambda run: torch_epochs(True, run),
}


def cells(options: argparse.Namespace) -> Iterator[Cell]:
    """Yield the trainings that folders are named for, and single epochs where there is a GPU."""
    kernels = {"mnist": ["sparsenn"] if options.mnist else [], "abalone": [], "random": []}
    if options.abalone:
        kernels["abalone"] = [rung.name for rung in ladder_for("train").rungs[backend_for(options.device).device]]
    if has_gpu():
        kernels["random"] = [rung.name for rung in ladder_for("train").rungs["cuda"]]
    for problem, names in kernels.items():
        yield from (Cell(problem, name) for name in names)
        yield from (Cell(problem, method) for of, method in PEERS if of == problem and names)


def has_gpu() -> bool:
    try:
        backend_for("cuda")
    except DeviceError:
        return False
    return True


def training_rows(cell: Cell, run: Run) -> list[Row]:
    """Train, and return the row; none where a trainer refuses the problem."""
    peer = PEERS.get((cell.problem, cell.method))
    if peer is not None:
        return [peer(run)]
    if cell.problem != "random":
        return [ours(cell.problem, cell.method, run)]
    try:
        return [trainer_epochs(cell.method, run)]
    except UsageError as error:
        run.notes.append(f"{cell.method}: {error}")
        return []


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--abalone", type=Path, help="folder of abalone.train and abalone.test")
    parser.add_argument("--abalone-epochs", type=count, default=100)
    parser.add_argument("--mnist", type=Path, help="folder of MNIST's four IDX files")
    parser.add_argument("--mnist-epochs", type=count, default=10)
    parser.add_argument("--runs", type=count, default=20, help="timed epochs of random rows on the GPU")
    parser.add_argument("--device", default="cpu")


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
        cells=cells,
        measure=training_rows,
        notes=[
            "Losses are those of training, averaged over an epoch; spread: interquartile range of the epochs' times."
        ],
        options=add_options,
        configuration=lambda run: {
            "abalone": ABALONE | {"epochs": run.options.abalone_epochs},
            "mnist": MNIST | {"epochs": run.options.mnist_epochs},
            "batch_size": BATCH,
            "seed": 0,
            "random_rows": RANDOM_ROWS,
            "runs": run.options.runs,
        },
    )
}
