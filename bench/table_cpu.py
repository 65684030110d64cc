"""Networks on a CPU beside other libraries: tables golden, cpu-rows, cpu-convolutions, torchvision and models.

Outputs are compared first. All libraries take the same rows, in blocks of calls in turns, each with its own number of
threads; OpenVINO and DeepSparse are left out where they are not installed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from cases import data_folder, digits, stratified
from peers import Peer, Problem, Way, as_matrix, deepsparse, onnx_runtime, openvino, torch_module, ways
from record import Row, Run, Table, WrongAnswerError, cases_of
from timing import floor

from sparsenn import ForeignLayer, Network, Session, from_onnx, from_weights, to_onnx
from sparsenn.layers import Conv2d, Flatten, MaxPool2d, ReLU

TOLERANCE = 1e-4
"""The largest difference of two outputs, as a share of the largest output, or of 1."""

LENET = (784, 300, 100, 10)
CHAINS = {
    "jets, 64-32-32-5, one an output": ((64, 32, 32, 5), (1, 1, 1), 10_000),
    "LeNet-300-100, 1.9 %": (LENET, (15, 6, 2), 10_000),
    "LeNet-300-100, 20 %": (LENET, (157, 60, 20), 10_000),
    "24 × 1024, 32 an output": ((1024,) * 25, (32,) * 24, 6000),
    "12 × 1024, 102 an output": ((1024,) * 13, (102,) * 12, 6000),
    "4 × 4096, 205 an output": ((4096,) * 5, (205,) * 4, 6000),
}
"""Widths, weights of an output in each layer, and the largest number of rows."""

MODELS = {
    **dict.fromkeys(("resnet18", "resnet50", "vgg11"), (1.0, 0.1, 0.05)),
    "mobilenet_v2": (1.0, 0.2, 0.1, 0.05),
    "efficientnet_b0": (1.0, 0.2),
}
"""Networks of convolutions, and the shares of their weights that are left."""

FAMILIES = (
    *("alexnet", "convnext_tiny", "densenet121", "efficientnet_b0", "efficientnet_v2_s", "googlenet", "inception_v3"),
    *("maxvit_t", "mnasnet0_5", "mobilenet_v2", "mobilenet_v3_small", "regnet_y_400mf", "resnet18", "resnext50_32x4d"),
    *("shufflenet_v2_x0_5", "squeezenet1_0", "swin_t", "vgg11", "vit_b_16", "wide_resnet50_2"),
)
"""A model of each family of torchvision's that classifies images."""

PIXELS = 224

CORRECT = {"lenet300-dns": 9801, "lenet300-lobs": 9664, "lenet5-dns": 9909}
"""Of the 10,000 test images, in float64; two more or less are a tie's rounding."""

ENGINES = (onnx_runtime, openvino, deepsparse)


# ---- Networks -------------------------------------------------------------------------------------------------------


def goldens() -> dict[str, Any]:
    from golden_networks import NETWORKS

    return NETWORKS


@lru_cache(maxsize=1)
def golden_problem(name: str) -> tuple[Any, Problem]:
    """Return one of `golden_networks.py`, and its problem without rows."""
    return goldens()[name], exported(goldens()[name])


@lru_cache(maxsize=1)
def torchvision_problem(name: str, left: float) -> tuple[Any, Problem]:
    """Return a model of torchvision with a share of its weights, and its problem without rows."""
    from golden_networks import Golden, numbers, torchvision_model

    golden = Golden(partial(torchvision_model, name, left, PIXELS), {"x": numbers(3, PIXELS, PIXELS)})
    return golden, exported(golden)


def exported(golden: Any) -> Problem:
    """Return a module as PyTorch writes it to a file."""
    import onnx

    module = golden.module()
    file = golden.onnx(module)
    return Problem(from_onnx(onnx.load_from_string(file)), {}, file=file, module=module)


@lru_cache(maxsize=1)
def chain_problem(name: str) -> Problem:
    """Return a chain, without rows."""
    widths, degrees, _ = CHAINS[name]
    return as_file(stratified(widths, degrees))


@lru_cache(maxsize=1)
def pruned_problem(name: str, data: Path) -> tuple[Problem, int]:
    """Return a pruned network with all test images, and how many of these it classifies correctly.

    Raises
    ------
    WrongAnswerError
        They are too few or too many.
    """
    path, layers, divisor, image = data_folder(data, "networks") / f"{name}.npz", None, 255, None
    if name == "lenet5-dns":
        layers = ["conv1", MaxPool2d(2), "conv2", MaxPool2d(2), Flatten(), "ip1", ReLU(), "ip2"]
        divisor, image = 256, (1, 28, 28)
    network = from_weights(path, layers, image=image) if layers else from_weights(path)
    images, classes = digits(data)
    rows = images.reshape(len(images), *network.shapes[0]) / np.float32(divisor)
    with Session(network, device="cpu") as session:
        correct = int((np.asarray(session(rows)).argmax(axis=1) == classes).sum())
    if abs(correct - CORRECT[name]) > 2:
        raise WrongAnswerError(f"{correct} images are classified correctly, not {CORRECT[name]}")
    return replace(as_file(network), rows=rows), correct


def as_file(network: Network) -> Problem:
    """Return a network, without rows, and its file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.onnx"
        to_onnx(network, path)
        return Problem(network, None, file=path.read_bytes())


# ---- Measuring ------------------------------------------------------------------------------------------------------


def compared(problem: Problem, peers: Sequence[Peer], run: Run) -> Row:
    """Check a network and time it beside peers; return its row.

    A peer whose outputs are not those of the first, with which ours agree, is not timed.

    Raises
    ------
    WrongAnswerError
        The outputs of the first peer differ.
    """
    with Session(problem.network, device="cpu") as session:
        own, others = as_matrix(session(problem.inputs)), list[Way]()
        for way in ways(peers, problem):
            expected = way.outputs(way.run())
            difference = float(np.abs(own - expected).max()) / max(1.0, float(np.abs(expected).max()))
            if difference <= TOLERANCE:
                others.append(way)
            elif others:  # with which the outputs agree
                run.note(f"outputs of {way.name} are wrong by {difference:.1e}")
            else:
                raise WrongAnswerError(f"{run.case}: outputs differ from {way.name} by {difference:.1e}")
        calls = [lambda: session(problem.inputs), *(way.run for way in others)]
        ours, *timings = run.timer.in_blocks(calls, run.options.seconds)
        kernels = ", ".join(dict.fromkeys(kernel.name for kernel in session.plan(problem.inputs).kernels))
    peer_times = {way.name: timing.median for way, timing in zip(others, timings, strict=True)}
    return {
        "milliseconds": ours.median,
        "spread_milliseconds": ours.spread,
        **{name: peer_times.get(name) for name in ("onnxruntime", "torch", "openvino", "deepsparse")},
        "times": peer_times["onnxruntime"] / ours.median if "onnxruntime" in peer_times else None,
        "chosen": kernels,
    }


def with_floor(problem: Problem, peers: Sequence[Peer], rows: int, run: Run) -> Row:
    """Return a row as `compared` does, with the time that nothing can go below."""
    row, network = compared(problem, peers, run), problem.network
    multiply_adds = weights = 0
    for layer, shape in zip(network.layers, network.shapes[1:], strict=True):
        left = layer.nonzeros if isinstance(layer, Conv2d) else layer.edges
        weights += left
        multiply_adds += left * prod(shape[1:]) if isinstance(layer, Conv2d) else left
    least = floor("cpu", 4 * (weights + rows * (network.inputs + network.outputs)), rows * multiply_adds)
    return row | {"floor": least, "share": least / row["milliseconds"]}


def golden_row(name: str, rows: int, run: Run) -> Row:
    golden, problem = golden_problem(name)
    row = compared(replace(problem, rows=golden.rows(rows)), (onnx_runtime, torch_module), run)
    foreign = sum(isinstance(layer, ForeignLayer) for layer in problem.network)
    return row | {"layers": len(problem.network) - foreign, "foreign": foreign}


def chain_row(name: str, rows: int, run: Run) -> Row:
    problem = chain_problem(name)
    drawn = np.random.default_rng(rows).random((rows, problem.network.inputs), dtype=np.float32)
    return with_floor(replace(problem, rows=drawn), ENGINES, rows, run)


def convolutions_row(name: str, left: float, rows: int, run: Run) -> Row:
    golden, problem = torchvision_problem(name, left)
    return with_floor(replace(problem, rows=golden.rows(rows)), ENGINES, rows, run)


def torchvision_row(name: str, left: float, rows: int, run: Run) -> Row:
    golden, problem = torchvision_problem(name, left)
    return compared(replace(problem, rows=golden.rows(rows)), (onnx_runtime, torch_module), run)


def pruned_row(name: str, rows: int, run: Run) -> Row:
    problem, correct = pruned_problem(name, run.options.data)
    row = compared(replace(problem, rows=problem.rows[:rows]), ENGINES, run)
    places = sum(prod(layer.weights.shape) for layer in problem.network if layer.edges)
    return row | {"right": correct, "left": problem.network.nonzeros / places}


# ---- The tables -----------------------------------------------------------------------------------------------------

LABELS = {"onnxruntime": "ONNX Runtime", "torch": "PyTorch", "openvino": "OpenVINO", "deepsparse": "DeepSparse"}

WARM_NOTE = (
    "Medians of warm calls, in blocks of each library alternately, rows and outputs in host memory, each library with "
    "its own number of threads. Outputs were compared first."
)
FLOOR_NOTE = (
    "The floor is the time of the multiply-adds of weights that are left at the rate of a dense product, or of copying "
    "them, the inputs and the outputs once."
)
IMAGES_NOTE = (
    f"Images of {PIXELS} × {PIXELS} pixels of random numbers. The largest weights of each layer are left, and all of "
    "depthwise convolutions."
)
DEEPSPARSE_NOTE = "DeepSparse ended in 2025; version 1.8.0 computes in a process of its own."
WHOLE_NOTE = "The kernel onnxruntime is ONNX Runtime with the whole network."

NETWORK, ROWS, IMAGES = ("network", "network"), ("rows", "rows"), ("rows", "images")
LEFT, TIMES = ("left", "weights", "{:.0%}"), ("times", "× ONNX Runtime", "{:.2f}")
SHARE, CHOSEN = ("share", "% of roofline", "{:.0%}"), ("chosen", "kernels")


def times(*peers: str) -> list[tuple[str, str, str]]:
    """Return the columns of our time and those of peers."""
    labels = {"milliseconds": "sparsenn"} | {peer: LABELS[peer] for peer in peers}
    return [(key, f"{label} (ms)", "{:.3f}") for key, label in labels.items()]


ENGINE_TIMES = times("onnxruntime", "openvino", "deepsparse")

TABLES = {
    "golden": Table(
        title=lambda options, rows: (
            f"ONNX files of many kinds, on a CPU: at least {min(row['times'] for row in rows):.2f} times as fast as "
            "ONNX Runtime"
        ),
        columns=[
            *(NETWORK, ROWS, *times("onnxruntime", "torch"), TIMES),
            *(("layers", "sparsenn's layers"), ("foreign", "ONNX Runtime's layers"), CHOSEN),
        ],
        cases=lambda options: cases_of(golden_row, "network rows", product(goldens(), options.rows)),
        notes=[
            f"{WARM_NOTE} A fifth of the weights is left in policies, transformers, the head of the LSTM, and the "
            f"layers of the table; others are dense. {WHOLE_NOTE}"
        ],
        options={"seconds": 2.0, "rows": [1, 64]},
        order=lambda row: row["times"],
    ),
    "cpu-rows": Table(
        title="Sparse layers with random weights, on a CPU",
        columns=[NETWORK, ROWS, *ENGINE_TIMES, ("floor", "floor (ms)", "{:.3f}"), SHARE, CHOSEN],
        cases=lambda options: cases_of(
            chain_row,
            "network rows",
            [(name, rows) for name, (_, _, most) in CHAINS.items() for rows in (*options.rows, most)],
        ),
        notes=[f"{WARM_NOTE} {FLOOR_NOTE}", DEEPSPARSE_NOTE],
        options={"seconds": 2.0, "rows": [1, 16, 64]},
    ),
    "cpu-convolutions": Table(
        title="Pruned networks of convolutions, random weights, on a CPU",
        columns=[NETWORK, LEFT, IMAGES, *ENGINE_TIMES, ("floor", "floor (ms)", "{:.2f}"), SHARE, CHOSEN],
        cases=lambda options: cases_of(
            convolutions_row,
            "network left rows",
            [(name, left, rows) for name, shares in MODELS.items() for left in shares for rows in options.rows],
        ),
        notes=[f"{WARM_NOTE} {IMAGES_NOTE} {FLOOR_NOTE}", DEEPSPARSE_NOTE],
        options={"seconds": 5.0, "rows": [1, 16]},
    ),
    "torchvision": Table(
        title="torchvision's models that classify images, random weights, on a CPU",
        columns=[NETWORK, LEFT, IMAGES, *times("onnxruntime", "torch"), TIMES, CHOSEN],
        cases=lambda options: cases_of(
            torchvision_row, "network left rows", product(FAMILIES, (1.0, 0.1), options.rows)
        ),
        notes=[f"ONNX files of PyTorch's. {WARM_NOTE} {IMAGES_NOTE} {WHOLE_NOTE}"],
        options={"seconds": 2.0, "rows": [1, 16]},
        order=lambda row: row["times"],
    ),
    "models": Table(
        title="Real pruned networks on MNIST images, on a CPU",
        columns=[NETWORK, LEFT, ROWS, ("right", "correct of 10,000", "{:,}"), *ENGINE_TIMES, TIMES, CHOSEN],
        cases=lambda options: cases_of(pruned_row, "network rows", product(CORRECT, options.rows)),
        notes=[WARM_NOTE, DEEPSPARSE_NOTE],
        options={"seconds": 2.0, "rows": [1, 64, 1024, 10_000]},
    ),
}
