"""Record what real pruned networks take beside ONNX Runtime, PyTorch and SciPy, and how many images they get right.

Usage: python bench/record_models.py DATA [--device cpu|cuda] [--seconds S] [--machine NAME]. DATA is a folder that
holds `networks` (lenet300-dns.npz, lenet300-lobs.npz, lenet5-dns.npz) and `mnist`. Writes
bench/results/<machine>/models.json, on a GPU models-cuda.json. Exit code 1: a network gets fewer images right than it
should, or a peer's outputs are others.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from results_file import results_path, write_results

from sparsenn import Conv2d, Flatten, MaxPool2d, Network, ReLU, Session, from_weights
from sparsenn.io import read_idx
from sparsenn.layers import FullyConnected
from sparsenn.studies.benchmark import run_benchmark
from sparsenn.studies.peers import PEERS

ROWS = (1, 64, 1024, 10_000)
RIGHT = {"lenet300-dns": 9801, "lenet300-lobs": 9664, "lenet5-dns": 9909}
"""Of the 10,000 test images, in float64; two more or less are a tie's rounding."""

NAMES = {"lenet300-dns": "LeNet-300-100", "lenet300-lobs": "LeNet-300-100", "lenet5-dns": "LeNet-5"}
LABELS = {"onnxruntime": "ONNX Runtime", "torch": "PyTorch", "scipy": "SciPy"}


def network_of(name: str, data: Path) -> Network:
    """Read a network."""
    path = data / "networks" / f"{name}.npz"
    if name != "lenet5-dns":
        return from_weights(path)
    layers: list[Any] = ["conv1", MaxPool2d(2), "conv2", MaxPool2d(2), Flatten(), "ip1", ReLU(), "ip2"]
    return from_weights(path, layers, image=(1, 28, 28))


def images_of(name: str, data: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the test images as the network takes them, and their labels."""
    images = read_idx(data / "mnist" / "t10k-images-idx3-ubyte.gz").reshape(-1, 784)
    divisor = np.float32(256 if name == "lenet5-dns" else 255)
    return images / divisor, np.asarray(read_idx(data / "mnist" / "t10k-labels-idx1-ubyte.gz"))


def share_left(network: Network) -> float:
    """Return the share of a network's weights that are not zero."""
    weighted = [layer for layer in network if isinstance(layer, FullyConnected | Conv2d)]
    sizes = [math.prod(layer.weights.shape) for layer in weighted]
    return network.nonzeros / sum(sizes)


def recorded(name: str, data: Path, device: str, seconds: float) -> list[dict[str, Any]]:
    """Run one network; return a row for each number of rows, `left_out` in the first."""
    network, (images, labels) = network_of(name, data), images_of(name, data)
    with Session(network, device=device) as session:
        right = int((np.asarray(session(images)).argmax(axis=1) == labels).sum())
    result = run_benchmark(network, ROWS, images, seconds=seconds, device=device)
    shown = f"{NAMES[name]}, {100 * share_left(network):.2g} % of its weights"
    found = []
    for count in ROWS:
        ours = result.ours(count)
        peers = {call.way: 1e3 * call.median for call in result.calls if call.rows == count and call is not ours}
        fastest = min(peers.values(), default=None)
        row: dict[str, Any] = {"key": f"{name}-{count}", "network": shown, "rows": count, "right": right}
        row |= {"milliseconds": 1e3 * ours.median, "p99": 1e3 * ours.p99, "kernels": ", ".join(ours.kernels)}
        row |= {peer: peers.get(peer) for peer in PEERS}
        found.append(row | {"times": None if fastest is None else fastest / (1e3 * ours.median)})
    found[0]["left_out"] = dict(result.left_out)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(description="Record what real pruned networks take beside other libraries.")
    parser.add_argument("data", type=Path)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each way and number of rows")
    parser.add_argument("--machine", help="name of the folder of results; made of CPU and GPU unless given")
    options = parser.parse_args(arguments)
    rows = [row for name in RIGHT for row in recorded(name, options.data, options.device, options.seconds)]
    wrong = [row["key"] for row in rows if abs(row["right"] - RIGHT[row["key"].rpartition("-")[0]]) > 2]
    off = [(row["key"], peer, why) for row in rows for peer, why in row.get("left_out", {}).items() if "off" in why]
    write_results(
        results_path("models" if options.device == "cpu" else "models-cuda", folder=options.machine),
        table="models",
        title=f"Real pruned networks on MNIST images, on a {options.device.upper().replace('CUDA', 'GPU')}",
        columns=[
            ("network", "network"),
            ("rows", "rows", "{:,}"),
            ("right", "right of 10,000", "{:,}"),
            ("milliseconds", "sparsenn (ms)", "{:.3f}"),
            ("p99", "p99 (ms)", "{:.3f}"),
            *((peer, f"{label} (ms)", "{:.3f}") for peer, label in LABELS.items()),
            ("times", "× the fastest of them", "{:.2f}"),
            ("kernels", "kernels"),
        ],
        rows=rows,
        configuration={"rows": list(ROWS), "seconds": options.seconds},
        notes=[
            "Medians of warm calls, the answer awaited, for some seconds each; every answer was held against ours "
            "first. ONNX Runtime runs the network as a dense ONNX file, PyTorch its dense layers, SciPy dense rows "
            "times CSR; the last two are compared on fully connected layers. Rows and outputs lie where each computes.",
        ],
    )
    for line in (*wrong, *(f"{key}: {peer} {why}" for key, peer, why in off)):
        print(f"record_models: {line}", file=sys.stderr)
    return int(bool(wrong or off))


if __name__ == "__main__":
    sys.exit(main())
