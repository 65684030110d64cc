"""Record trainings of MLPs: losses, accuracy and time by epoch, ours beside scikit-learn, FANN and PyTorch.

Usage: python bench/record_training.py [--abalone FOLDER] [--abalone-epochs E] [--mnist FOLDER] [--mnist-epochs E]
                                       [--runs R] [--device DEVICE] [--machine NAME]

FOLDERs hold abalone.train and abalone.test, and MNIST's four IDX files; what is not named is left out. Where there is
a GPU, an epoch of 2,000 random rows is timed in every trainer of `train`, and in PyTorch if that is there, by single
launches and as one CUDA graph. scikit-learn and FANN (libfann) run on abalone where they are installed; notes say
what was not there. Writes bench/results/<machine>/training.json.
"""

from __future__ import annotations

import argparse
import ctypes
import ctypes.util
import statistics
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from results_file import Column, results_path, write_results

from sparsenn.backends import TrainingProblem, backend_for
from sparsenn.errors import DeviceError, UsageError
from sparsenn.layers import Identity, ReLU
from sparsenn.studies.ladder import ladder_for
from sparsenn.training import Evaluation, TrainingData, evaluate, read_data, train
from sparsenn.training.initial import initial_layers

COLUMNS = (
    Column("problem", "problem"),
    Column("method", "method"),
    Column("epochs", "epochs"),
    Column("epoch_milliseconds", "median epoch (ms)", "{:,.2f}"),
    Column("spread_milliseconds", "spread (ms)", "{:,.2f}"),
    Column("first_loss", "first loss", "{:.4g}"),
    Column("last_loss", "last loss", "{:.4g}"),
    Column("test_loss", "test loss", "{:.4g}"),
    Column("accuracy", "test accuracy", "{:.2%}"),
)
HIDDEN = (500, 500, 500)
ABALONE: dict[str, Any] = {"hidden": HIDDEN, "activation": "relu", "learning_rate": 0.01, "momentum": 0.9}
MNIST: dict[str, Any] = {"hidden": (128,), "activation": "relu", "learning_rate": 0.05, "momentum": 0.9}
BATCH = 64
RANDOM_ROWS = 2000
FANN_BATCH, FANN_SIGMOID = 1, 3
FANN_RATE = 0.1

Row = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    options = parse(arguments)
    rows: list[Row] = []
    notes = ["Losses are those of training, averaged over an epoch; spread: interquartile range of the epochs' times."]
    if options.abalone is not None:
        rows += abalone(options.abalone, options.abalone_epochs, options.device, notes)
    if options.mnist is not None:
        rows.append(mnist(options.mnist, options.mnist_epochs, options.device))
    rows += single_epochs(options.runs, notes)
    if not rows:
        print("nothing to record: name --abalone or --mnist, or run where there is a GPU")
        return 2
    path = results_path("training", folder=options.machine)
    write_results(
        path,
        table="training",
        title="Training of MLPs, mini-batches of 64",
        columns=COLUMNS,
        rows=rows,
        configuration={
            "abalone": ABALONE | {"epochs": options.abalone_epochs},
            "mnist": MNIST | {"epochs": options.mnist_epochs},
            "batch_size": BATCH,
            "seed": 0,
            "random_rows": RANDOM_ROWS,
            "runs": options.runs,
        },
        notes=notes,
    )
    return 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Record trainings of MLPs.")
    parser.add_argument("--abalone", type=Path)
    parser.add_argument("--abalone-epochs", type=int, default=100)
    parser.add_argument("--mnist", type=Path)
    parser.add_argument("--mnist-epochs", type=int, default=10)
    parser.add_argument("--runs", type=int, default=20, help="timed epochs of random rows on the GPU")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--machine", help="folder of results, instead of this machine's")
    return parser.parse_args(arguments)


def row(problem: str, method: str, seconds: Sequence[float], losses: Sequence[float], **more: Any) -> Row:
    """One line of the table, with all losses and times."""
    quartiles = statistics.quantiles(seconds, n=4) if len(seconds) > 1 else [0.0, 0.0, 0.0]
    return {
        "problem": problem,
        "method": method,
        "epochs": len(losses),
        "epoch_milliseconds": 1e3 * statistics.median(seconds),
        "spread_milliseconds": 1e3 * (quartiles[2] - quartiles[0]),
        "first_loss": losses[0],
        "last_loss": losses[-1],
        "test_loss": None,
        "accuracy": None,
        "losses": list(losses),
        "seconds": list(seconds),
    } | more


def ours(name: str, data: TrainingData, held_out: TrainingData, epochs: int, device: str, **how: Any) -> Row:
    seconds: list[float] = []
    result = train(
        data,
        **how,
        epochs=epochs,
        batch_size=BATCH,
        device=device,
        validation=held_out,
        report=lambda epoch: seconds.append(data.rows / epoch.rows_per_second),
    )
    found = result.validation[-1][1]
    by_epoch = [{"epoch": epoch, "loss": each.value, "accuracy": each.accuracy} for epoch, each in result.validation]
    method = f"sparsenn, {result.kernel} ({device})"
    return row(
        name, method, seconds, result.losses, test_loss=found.value, accuracy=found.accuracy, validation=by_epoch
    )


def read_fann(path: Path) -> TrainingData:
    """Read FANN's text: numbers of rows, inputs and outputs, then a line of inputs and one of outputs per row."""
    numbers = np.array(path.read_text().split(), np.float32)
    rows, inputs, outputs = numbers[:3].astype(int)
    table = numbers[3:].reshape(rows, inputs + outputs)
    return TrainingData(table[:, :inputs], table[:, inputs:])


def abalone(folder: Path, epochs: int, device: str, notes: list[str]) -> list[Row]:
    data, held_out = (read_fann(folder / f"abalone.{part}") for part in ("train", "test"))
    name = "abalone, 10-500-500-500-1"
    rows = [
        ours(name, data, held_out, epochs, device, **ABALONE, kernel=entry.name)
        for entry in ladder_for("train").rungs[backend_for(device).device]
    ]
    for add in (scikit_learn, fann):
        found = add(name, folder, data, held_out, epochs)
        if isinstance(found, str):
            notes.append(found)
        else:
            rows.append(found)
    return rows


def mnist(folder: Path, epochs: int, device: str) -> Row:
    suffix = ".gz" if (folder / "train-images-idx3-ubyte.gz").is_file() else ""
    data = read_data(folder / f"train-images-idx3-ubyte{suffix}", outputs=10)
    held_out = read_data(folder / f"t10k-images-idx3-ubyte{suffix}", outputs=10)
    return ours("MNIST, 784-128-10", data, held_out, epochs, device, **MNIST)


def scikit_learn(name: str, folder: Path, data: TrainingData, held_out: TrainingData, epochs: int) -> Row | str:
    """The same network and descent; its loss is half the mean squared error, hence twice the rate."""
    try:
        from sklearn import __version__
        from sklearn.neural_network import MLPRegressor
    except ImportError:
        return "scikit-learn was not there to compare with."
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
    return row(name, f"scikit-learn {__version__}, MLPRegressor", seconds, losses, test_loss=error)


def fann(name: str, folder: Path, data: TrainingData, held_out: TrainingData, epochs: int) -> Row | str:
    """FANN's batch mode: one update an epoch, sigmoids everywhere."""
    place = ctypes.util.find_library("fann")
    if place is None:
        return "FANN (libfann) was not there to compare with."
    library = ctypes.CDLL(place)
    library.fann_create_standard_array.restype = ctypes.c_void_p
    library.fann_read_train_from_file.restype = ctypes.c_void_p
    library.fann_train_epoch.restype = library.fann_test_data.restype = ctypes.c_float
    widths = (data.inputs.shape[1], *HIDDEN, data.targets.shape[1])
    network = ctypes.c_void_p(library.fann_create_standard_array(len(widths), (ctypes.c_uint * len(widths))(*widths)))
    read = [
        ctypes.c_void_p(library.fann_read_train_from_file(str(folder / f"abalone.{part}").encode()))
        for part in ("train", "test")
    ]
    if not (network and all(read)):
        return "FANN (libfann) was there, but could not read the data."
    library.fann_set_training_algorithm(network, FANN_BATCH)
    library.fann_set_activation_function_hidden(network, FANN_SIGMOID)
    library.fann_set_activation_function_output(network, FANN_SIGMOID)
    library.fann_set_learning_rate(network, ctypes.c_float(FANN_RATE))
    seconds, losses = [], []
    for _ in range(epochs):
        start = time.perf_counter()
        losses.append(float(library.fann_train_epoch(network, read[0])))
        seconds.append(time.perf_counter() - start)
    error = float(library.fann_test_data(network, read[1]))
    for loaded in read:
        library.fann_destroy_train(loaded)
    library.fann_destroy(network)
    return row(name, "FANN, batch mode, sigmoid", seconds, losses, test_loss=error)


def random_problem() -> TrainingProblem:
    """10-500-500-500-1 on 2,000 random rows."""
    rng = np.random.default_rng(0)
    layers = initial_layers((10, *HIDDEN, 1), ReLU(), Identity(), rng)
    inputs = rng.random((RANDOM_ROWS, 10), np.float32)
    return TrainingProblem(layers, inputs, rng.random((RANDOM_ROWS, 1), np.float32), "mse", BATCH, 0.01, 0.0)


def single_epochs(runs: int, notes: list[str]) -> list[Row]:
    """Time an epoch of random rows on the GPU; nothing where there is none."""
    try:
        index = getattr(backend_for("cuda"), "index", 0)
    except DeviceError:
        notes.append("There was no GPU.")
        return []
    problem, name, rows = random_problem(), "2,000 random rows, 10-500-500-500-1", []
    order = np.random.default_rng(1).permutation(RANDOM_ROWS)
    for entry in ladder_for("train").rungs["cuda"]:
        try:
            trainer = entry.launch(problem, index)
        except UsageError as error:
            notes.append(f"{entry.name}: {error}")
            continue
        rows.append(timed(name, f"sparsenn, {entry.name} (cuda)", lambda trainer=trainer: trainer.epoch(order), runs))
        rows[-1]["test_loss"] = scored(trainer.layers(), problem).value
    try:
        rows += pytorch(name, problem, order, runs)
    except ImportError:
        notes.append("PyTorch was not there to compare with.")
    return rows


def scored(layers: Any, problem: TrainingProblem) -> Evaluation:
    from sparsenn.network import Network

    return evaluate(Network(tuple(layers)), problem.inputs, problem.targets, problem.loss, "cpu")


def timed(name: str, method: str, epoch: Callable[[], float], runs: int) -> Row:
    """Time epochs by the wall clock, each to the loss on the host; three before that are not counted."""
    losses, seconds = [], []
    for number in range(runs + 3):
        start = time.perf_counter()
        losses.append(epoch())
        if number >= 3:
            seconds.append(time.perf_counter() - start)
    return row(name, method, seconds, losses)


def pytorch(name: str, problem: TrainingProblem, order: np.ndarray, runs: int) -> list[Row]:
    """The same descent in PyTorch: launch by launch, then a whole epoch as one CUDA graph."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    device = torch.device("cuda")
    inputs, targets = (torch.tensor(array[order], device=device) for array in (problem.inputs, problem.targets))

    def fresh() -> tuple[Any, Any, Any]:
        parts: list[Any] = []
        for number, (before, after) in enumerate(pairwise((10, *HIDDEN, 1))):
            linear = torch.nn.Linear(before, after, device=device)
            with torch.no_grad():
                linear.weight.copy_(torch.tensor(problem.layers[number].weights.T.copy()))
                linear.bias.zero_()
            parts += [linear, torch.nn.ReLU()]
        model = torch.nn.Sequential(*parts[:-1])
        return model, torch.optim.SGD(model.parameters(), lr=problem.learning_rate), torch.nn.MSELoss()

    def passes(model: Any, descent: Any, measure: Any, total: Any) -> None:
        total.zero_()
        for start in range(0, RANDOM_ROWS, BATCH):
            descent.zero_grad(set_to_none=False)
            part = slice(start, start + BATCH)
            loss = measure(model(inputs[part]), targets[part])
            loss.backward()
            descent.step()
            total.add_(loss.detach().double() * len(inputs[part]))

    total = torch.zeros((), dtype=torch.float64, device=device)
    parts = fresh()

    def eager() -> float:
        passes(*parts, total)
        return float(total) / RANDOM_ROWS

    rows = [timed(name, "PyTorch, launch by launch", eager, runs)]
    parts = fresh()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            passes(*parts, total)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        passes(*parts, total)

    def replayed() -> float:
        graph.replay()
        return float(total) / RANDOM_ROWS

    rows.append(timed(name, "PyTorch, an epoch as one CUDA graph", replayed, runs))
    return rows


if __name__ == "__main__":
    raise SystemExit(main())
