"""Real pruned networks beside ONNX Runtime, PyTorch and SciPy, and how many images they classify correctly."""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from cases import Sources, add_data_option
from record import Row, Run, Table, WrongAnswerError, count

from sparsenn import Conv2d, Flatten, MaxPool2d, Network, ReLU, Session, from_weights
from sparsenn.io import read_idx
from sparsenn.layers import FullyConnected
from sparsenn.studies.benchmark import run_benchmark
from sparsenn.studies.peers import PEERS

ROWS = (1, 64, 1024, 10_000)
CORRECT = {"lenet300-dns": 9801, "lenet300-lobs": 9664, "lenet5-dns": 9909}
"""Of the 10,000 test images, in float64; two more or less are a tie's rounding."""

NAMES = {"lenet300-dns": "LeNet-300-100", "lenet300-lobs": "LeNet-300-100", "lenet5-dns": "LeNet-5"}
LABELS = {"onnxruntime": "ONNX Runtime", "torch": "PyTorch", "scipy": "SciPy"}


@dataclass(frozen=True)
class Cell:
    """A network with a number of images."""

    name: str
    rows: int

    def __str__(self) -> str:
        return f"{self.name}-{self.rows}"


def network_of(name: str, sources: Sources) -> Network:
    """Read a network."""
    path = sources.needed("networks") / f"{name}.npz"
    if name != "lenet5-dns":
        return from_weights(path)
    layers: list[Any] = ["conv1", MaxPool2d(2), "conv2", MaxPool2d(2), Flatten(), "ip1", ReLU(), "ip2"]
    return from_weights(path, layers, image=(1, 28, 28))


def images_of(name: str, folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the test images as the network takes them, and their labels."""
    images = read_idx(folder / "t10k-images-idx3-ubyte.gz").reshape(-1, 784)
    divisor = np.float32(256 if name == "lenet5-dns" else 255)
    return images / divisor, np.asarray(read_idx(folder / "t10k-labels-idx1-ubyte.gz"))


def share_left(network: Network) -> float:
    """Return the share of a network's weights that are not zero."""
    weighted = [layer for layer in network if isinstance(layer, FullyConnected | Conv2d)]
    return network.nonzeros / sum(math.prod(layer.weights.shape) for layer in weighted)


def model_row(cell: Cell, run: Run) -> Row:
    """Count correct images, and time a network beside its peers, whose outputs are compared first.

    Raises
    ------
    WrongAnswerError
        Too few or too many images are classified correctly, or a peer's outputs differ.
    """
    sources, device = Sources(run.options.data), run.options.device
    network, (images, labels) = network_of(cell.name, sources), images_of(cell.name, sources.needed("mnist"))
    with Session(network, device=device) as session:
        correct = int((np.asarray(session(images)).argmax(axis=1) == labels).sum())
    if abs(correct - CORRECT[cell.name]) > 2:
        raise WrongAnswerError(f"{cell}: {correct} images are classified correctly, not {CORRECT[cell.name]}")
    result = run_benchmark(network, [cell.rows], images, seconds=run.options.seconds, device=device)
    for peer, reason in result.left_out:
        if "off" in reason:
            raise WrongAnswerError(f"{cell}: {peer} {reason}")
    ours = result.ours(cell.rows)
    peers = {call.way: 1e3 * call.median for call in result.calls if call is not ours}
    return {
        "network": f"{NAMES[cell.name]}, {100 * share_left(network):.2g} % of its weights",
        "rows": cell.rows,
        "right": correct,
        "milliseconds": 1e3 * ours.median,
        "p99": 1e3 * ours.p99,
        "kernels": ", ".join(ours.kernels),
        **{peer: peers.get(peer) for peer in PEERS},
        "times": min(peers.values()) / (1e3 * ours.median) if peers else None,
        "left_out": dict(result.left_out),
    }


def add_options(parser: argparse.ArgumentParser) -> None:
    add_data_option(parser)
    parser.add_argument("--rows", type=count, nargs="+", default=ROWS, help="numbers of images")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each library and number of images")


TABLES = {
    "models": Table(
        title=lambda options, rows: (
            f"Real pruned networks on MNIST images, on a {options.device.upper().replace('CUDA', 'GPU')}"
        ),
        columns=[
            ("network", "network"),
            ("rows", "rows", "{:,}"),
            ("right", "correct of 10,000", "{:,}"),
            ("milliseconds", "sparsenn (ms)", "{:.3f}"),
            ("p99", "p99 (ms)", "{:.3f}"),
            *((peer, f"{label} (ms)", "{:.3f}") for peer, label in LABELS.items()),
            ("times", "× the fastest of them", "{:.2f}"),
            ("kernels", "kernels"),
        ],
        cells=lambda options: [Cell(name, rows) for name in CORRECT for rows in options.rows],
        measure=model_row,
        notes=[
            "Median latencies of warm calls, timed for some seconds each, after answers had been compared. ONNX "
            "Runtime runs the network as a dense ONNX file, PyTorch its dense layers, SciPy dense rows times CSR; "
            "the last two are compared on fully connected layers. Rows and outputs are in the memory of the device "
            "that computes.",
        ],
        options=add_options,
        configuration=("rows", "seconds"),
        device="cpu",
    )
}
