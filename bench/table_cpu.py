"""Networks on a CPU beside other libraries: tables golden, cpu-rows, cpu-convolutions, torchvision.

Outputs are compared first. All libraries take the same rows, in blocks of calls in turns, each with its own number of
threads; OpenVINO and DeepSparse are left out where they are not installed.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
from ceilings import ceilings
from peers import Peer, Problem, Way, as_matrix, deepsparse, onnx_runtime, openvino, torch_module, ways
from record import Row, Run, Table, WrongAnswerError, count

from sparsenn import ForeignLayer, Network, ReLU, Session, from_onnx, to_onnx
from sparsenn.layers import Conv2d

TOLERANCE = 1e-4
"""The largest difference of two outputs, in parts of the largest output, or of 1."""

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


@dataclass(frozen=True)
class Cell:
    """A network, by its name and the share of its weights, with a number of rows."""

    network: str
    rows: int
    left: float | None = None

    def __str__(self) -> str:
        return "-".join([self.network, *([] if self.left is None else [f"{self.left:g}"]), str(self.rows)])


@dataclass(frozen=True)
class Chain:
    """A chain of layers, ReLU after each: widths, weights of an output, and numbers of rows."""

    widths: tuple[int, ...]
    weights: tuple[int, ...]
    rows: tuple[int, ...]

    def network(self) -> Network:
        """Return the network, the inputs of an output at random places."""
        rng = np.random.default_rng(0)
        layers = []
        for inputs, outputs, each in zip(self.widths[:-1], self.widths[1:], self.weights, strict=True):
            places = np.concatenate([np.sort(rng.choice(inputs, each, replace=False)) for _ in range(outputs)])
            values = (rng.standard_normal(places.size) * np.sqrt(2 / each)).astype(np.float32)
            starts = np.arange(0, places.size + 1, each)
            layers.append(scipy.sparse.csc_array((values, places, starts), shape=(inputs, outputs)))
        return Network.from_scipy(layers, bias=0.01, activation=ReLU())


LENET = (784, 300, 100, 10)
CHAINS = {
    "jets, 64-32-32-5, one an output": Chain((64, 32, 32, 5), (1, 1, 1), (1, 16, 64, 10_000)),
    "LeNet-300-100, 1.9 %": Chain(LENET, (15, 6, 2), (1, 16, 64, 10_000)),
    "LeNet-300-100, 20 %": Chain(LENET, (157, 60, 20), (1, 16, 64, 10_000)),
    "24 × 1024, 32 an output": Chain((1024,) * 25, (32,) * 24, (1, 16, 64, 6000)),
    "12 × 1024, 102 an output": Chain((1024,) * 13, (102,) * 12, (1, 16, 64, 6000)),
    "4 × 4096, 205 an output": Chain((4096,) * 5, (205,) * 4, (1, 16, 64, 6000)),
}


@cache
def goldens() -> dict[str, Any]:
    from golden_networks import NETWORKS

    return NETWORKS


@lru_cache(maxsize=1)
def golden_problem(golden: Any) -> Problem:
    """Return a network of `golden_networks.py` or torchvision, without rows, as PyTorch writes it to a file."""
    import onnx

    module = golden.module()
    file = golden.onnx(module)
    return Problem(from_onnx(onnx.load_from_string(file)), {}, file=file, module=module)


@lru_cache(maxsize=1)
def chain_problem(chain: Chain) -> Problem:
    """Return a chain, without rows, and its file."""
    network = chain.network()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.onnx"
        to_onnx(network, path)
        return Problem(network, None, file=path.read_bytes())


@cache
def convolutions(name: str, left: float) -> Any:
    from golden_networks import Golden, numbers, torchvision_model

    return Golden(partial(torchvision_model, name, left, PIXELS), {"x": numbers(3, PIXELS, PIXELS)})


def compared(problem: Problem, peers: Sequence[Peer], cell: Cell, run: Run) -> Row:
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
                run.notes.append(f"{cell}: outputs of {way.name} are wrong by {difference:.1e}.")
            else:
                raise WrongAnswerError(f"{cell}: outputs differ from {way.name} by {difference:.1e}")
        calls = [lambda: session(problem.inputs), *(way.run for way in others)]
        ours, *timings = run.timer.in_blocks(calls, run.options.seconds)
        kernels = ", ".join(dict.fromkeys(kernel.name for kernel in session.plan(problem.inputs).kernels))
    peer_times = {way.name: timing.median for way, timing in zip(others, timings, strict=True)}
    return {
        "key": str(cell),
        "network": cell.network,
        "left": cell.left,
        "rows": cell.rows,
        "milliseconds": ours.median,
        "spread_milliseconds": ours.spread,
        "over_least": ours.median / ours.least - 1,
        **{name: peer_times.get(name) for name in ("onnxruntime", "torch", "openvino", "deepsparse")},
        "chosen": kernels,
    }


def floor(network: Network, rows: int) -> float:
    """Return the milliseconds that nothing can go below: weights, rows and outputs once, or multiply-adds."""
    multiply_adds = weights = 0
    for layer, shape in zip(network.layers, network.shapes[1:], strict=True):
        count = int(np.count_nonzero(layer.weights)) if isinstance(layer, Conv2d) else layer.edges
        weights += count
        multiply_adds += count * prod(shape[1:]) if isinstance(layer, Conv2d) else count
    moved = 4 * (weights + rows * (network.inputs + network.outputs))
    return 1e3 * ceilings().floor(moved, rows * multiply_adds)


# ---- golden -----------------------------------------------------------------------------------------------------


def golden_row(cell: Cell, run: Run) -> Row:
    golden = goldens()[cell.network]
    problem = replace(golden_problem(golden), rows=golden.rows(cell.rows))
    row = compared(problem, (onnx_runtime, torch_module), cell, run)
    foreign = sum(isinstance(layer, ForeignLayer) for layer in problem.network)
    return row | {
        "times": row["onnxruntime"] / row["milliseconds"],
        "layers": len(problem.network) - foreign,
        "foreign": foreign,
    }


GOLDEN = Table(
    title=lambda options, rows: (
        f"ONNX files of many kinds, on a CPU: at least {min(row['times'] for row in rows):.2f} times as fast as "
        "ONNX Runtime"
    ),
    columns=[
        ("network", "network"),
        ("rows", "rows"),
        ("milliseconds", "sparsenn (ms)", "{:.3f}"),
        ("onnxruntime", "ONNX Runtime (ms)", "{:.3f}"),
        ("torch", "PyTorch (ms)", "{:.3f}"),
        ("times", "× ONNX Runtime", "{:.2f}"),
        ("layers", "sparsenn's layers"),
        ("foreign", "ONNX Runtime's layers"),
        ("chosen", "kernels"),
    ],
    cells=lambda options: [Cell(name, rows) for name in goldens() for rows in options.rows],
    measure=golden_row,
    notes=[
        "Medians of warm calls, in blocks for each library alternately, rows and outputs in host memory, each library "
        "with its own number of threads. Outputs were compared first. A fifth of the weights is left in policies, "
        "transformers, the head of the LSTM, and the layers of the table; others are dense. The kernel onnxruntime is "
        "ONNX Runtime with the whole network."
    ],
    options=lambda parser: _add_options(parser, 2.0, (1, 64)),
    configuration=("rows", "seconds"),
    order=lambda row: row["times"],
)


# ---- Sparse layers and convolutions -----------------------------------------------------------------------------


def chain_cells(options: argparse.Namespace) -> Iterator[Cell]:
    for name, chain in CHAINS.items():
        yield from (Cell(name, rows) for rows in options.rows or chain.rows)


def chain_row(cell: Cell, run: Run) -> Row:
    problem = chain_problem(CHAINS[cell.network])
    rows = np.random.default_rng(cell.rows).random((cell.rows, problem.network.inputs), dtype=np.float32)
    row = compared(replace(problem, rows=rows), (onnx_runtime, openvino, deepsparse), cell, run)
    return _with_floor(row, problem)


def convolutions_row(cell: Cell, run: Run) -> Row:
    golden = convolutions(cell.network, cell.left)
    problem = replace(golden_problem(golden), rows=golden.rows(cell.rows))
    row = compared(problem, (onnx_runtime, openvino, deepsparse), cell, run)
    return _with_floor(row, problem)


def _with_floor(row: Row, problem: Problem) -> Row:
    least = floor(problem.network, row["rows"])
    return row | {"floor": least, "share": least / row["milliseconds"]}


def torchvision_row(cell: Cell, run: Run) -> Row:
    golden = convolutions(cell.network, cell.left)
    problem = replace(golden_problem(golden), rows=golden.rows(cell.rows))
    row = compared(problem, (onnx_runtime, torch_module), cell, run)
    return row | {"times": row["onnxruntime"] / row["milliseconds"]}


def _add_options(parser: argparse.ArgumentParser, seconds: float, rows: Sequence[int] | None) -> None:
    parser.add_argument("--seconds", type=float, default=seconds, help="of timed calls of each cell")
    parser.add_argument("--rows", type=count, nargs="+", default=rows, help="numbers of rows")


FLOOR_NOTE = (
    "The floor is the time of the multiply-adds of weights that are left at the rate of a dense product, or of copying "
    "them, the rows and the outputs once."
)
PEER_COLUMNS = (
    *(("onnxruntime", "ONNX Runtime (ms)"), ("openvino", "OpenVINO (ms)")),
    ("deepsparse", "DeepSparse (ms)"),
)

DEEPSPARSE_NOTE = "DeepSparse ended in 2025; version 1.8.0 computes in a process of its own."

CPU_ROWS = Table(
    title="Sparse layers with random weights, on a CPU",
    columns=[
        ("network", "network"),
        ("rows", "rows"),
        ("milliseconds", "sparsenn (ms)", "{:.3f}"),
        *((*column, "{:.3f}") for column in PEER_COLUMNS),
        ("floor", "floor (ms)", "{:.3f}"),
        ("share", "% of roofline", "{:.0%}"),
        ("over_least", "median over least", "{:.0%}"),
        ("chosen", "kernels"),
    ],
    cells=chain_cells,
    measure=chain_row,
    notes=[
        "Medians of warm calls, in blocks of each library alternately, with its own number of threads. Outputs were "
        f"compared first. {FLOOR_NOTE}",
        DEEPSPARSE_NOTE,
    ],
    options=lambda parser: _add_options(parser, 2.0, None),
    configuration=("seconds",),
)

CPU_CONVOLUTIONS = Table(
    title="Pruned networks of convolutions, random weights, on a CPU",
    columns=[
        ("network", "network"),
        ("left", "weights", "{:.0%}"),
        ("rows", "images"),
        ("milliseconds", "sparsenn (ms)", "{:.2f}"),
        *((*column, "{:.2f}") for column in PEER_COLUMNS),
        ("floor", "floor (ms)", "{:.2f}"),
        ("share", "% of roofline", "{:.0%}"),
        ("chosen", "kernels"),
    ],
    cells=lambda options: [
        Cell(name, rows, left) for name, shares in MODELS.items() for left in shares for rows in options.rows
    ],
    measure=convolutions_row,
    notes=[
        f"Images of {PIXELS} × {PIXELS} pixels of random numbers. Medians of warm calls, in blocks of each library "
        "alternately, with its own number of threads. Outputs were compared first. The largest weights of each layer "
        f"are left, and all of depthwise convolutions. {FLOOR_NOTE.replace('rows', 'images')}",
        DEEPSPARSE_NOTE,
    ],
    options=lambda parser: _add_options(parser, 5.0, (1, 16)),
    configuration=("rows", "seconds"),
)

TORCHVISION = Table(
    title="torchvision's models that classify images, random weights, on a CPU",
    columns=[
        ("network", "network"),
        ("left", "weights", "{:.0%}"),
        ("rows", "images"),
        ("milliseconds", "sparsenn (ms)", "{:.2f}"),
        ("onnxruntime", "ONNX Runtime (ms)", "{:.2f}"),
        ("torch", "PyTorch (ms)", "{:.2f}"),
        ("times", "× ONNX Runtime", "{:.2f}"),
        ("chosen", "kernels"),
    ],
    cells=lambda options: [Cell(name, rows, left) for name in FAMILIES for left in (1.0, 0.1) for rows in options.rows],
    measure=torchvision_row,
    notes=[
        f"ONNX files of PyTorch's, images of {PIXELS} × {PIXELS} pixels of random numbers. Medians of warm calls, in "
        "blocks of each library alternately, with its own number of threads. Outputs were compared first. The largest "
        "weights of each layer are left, and all of depthwise convolutions. The kernel onnxruntime is ONNX Runtime "
        "with the whole network."
    ],
    options=lambda parser: _add_options(parser, 2.0, (1, 16)),
    configuration=("rows", "seconds"),
    order=lambda row: row["times"],
)

TABLES = {"golden": GOLDEN, "cpu-rows": CPU_ROWS, "cpu-convolutions": CPU_CONVOLUTIONS, "torchvision": TORCHVISION}
