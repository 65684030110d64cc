"""Networks on a GPU beside PyTorch as one CUDA graph: tables few-rows and gpu-convolutions.

Rows are on the device. PyTorch multiplies all weights, with their zeros, in the same precision. Outputs are compared
first.
"""

from __future__ import annotations

import argparse
import copy
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import scipy.sparse
from peers import allow_tf32, torch, torch_graph
from record import Row, Run, Table, WrongAnswerError, count
from timing import gpu_wait

import sparsenn
from sparsenn import Network
from sparsenn.backends.kernel_records import CONV_OPERATION

# ---- Few rows ---------------------------------------------------------------------------------------------------

LAYERS, BIAS = 3, 0.01
CHAINS = (
    *((width, density) for width in (512, 2048) for density in (0.01, 0.05, 0.2)),
    *((4096, density) for density in (0.05, 0.2, 0.5)),
    *((8192, density) for density in (0.01, 0.05, 0.2)),
)
"""Inputs and outputs of each layer, and the share of weights that is left."""

WEIGHT_BYTES = {"float32": 6, "float16": 4}
"""Of a weight and its place."""

FEW_TOLERANCE = {"float32": 1e-4, "float16": 3e-2}
"""The largest difference of two outputs, as a share of the largest output."""


@dataclass(frozen=True)
class FewRows:
    """A chain with a number of rows."""

    precision: str
    width: int
    density: float
    rows: int

    def __str__(self) -> str:
        return f"{self.precision}-{self.width}-{self.density}-{self.rows}"


@lru_cache(maxsize=1)
def weights_of(width: int, density: float) -> list[scipy.sparse.csc_matrix]:
    """Return layers whose outputs have equally many weights, at places of chance in equal ranges."""
    rng, each = np.random.default_rng(0), int(width * density)
    layers = []
    for _ in range(LAYERS):
        spread = (np.arange(each) * (width / each))[None, :].astype(int)
        places = np.sort(spread + rng.integers(0, max(1, width // each), (width, each)), axis=1) % width
        values = (rng.standard_normal(places.size) * np.sqrt(2 / each)).astype(np.float32)
        offsets = np.arange(0, places.size + 1, each)
        layers.append(scipy.sparse.csc_matrix((values, places.ravel(), offsets), shape=(width, width)))
        layers[-1].sum_duplicates()
    return layers


def few_rows(cell: FewRows, run: Run) -> Row:
    """Check a chain, and time a bound call and plain ones beside PyTorch's graph.

    Raises
    ------
    WrongAnswerError
        The outputs differ.
    """
    import cupy

    from sparsenn.backends.cuda.runtime.device import current_machine

    allow_tf32(False)
    kind = torch.float16 if cell.precision == "float16" else torch.float32
    layers = weights_of(cell.width, cell.density)
    dense = [torch.tensor(layer.toarray(), device="cuda").to(kind) for layer in layers]
    bias = torch.full((cell.width,), BIAS, device="cuda", dtype=kind)
    tensor = torch.rand(cell.rows, cell.width, device="cuda").to(kind)

    def products() -> Any:
        features = tensor
        for each in dense:
            features = torch.relu(torch.addmm(bias, features, each))
        return features

    replay = torch_graph(products)
    if replay is None:
        raise RuntimeError("PyTorch does not capture its products")
    expected, rows = cupy.asarray(replay()).astype(np.float32), cupy.asarray(tensor)
    network = Network.from_scipy(layers, bias=BIAS, activation=sparsenn.ReLU())
    with sparsenn.Session(network, device="cuda", precision=cell.precision) as session:
        bound = session.bind(rows)
        difference = float(abs(bound().astype(np.float32) - expected).max() / abs(expected).max())
        _refuse(difference, FEW_TOLERANCE[cell.precision], cell)
        calls: dict[str, Callable[[], Any]] = {
            "bound": bound,
            "torch": replay,
            "plain": lambda: session(rows),
            "tensor": lambda: session(tensor),
        }
        times = {name: _milliseconds(run, call) for name, call in calls.items()}
        kernels = ", ".join(dict.fromkeys(kernel.name for kernel in session.plan(rows).kernels))
    least = sum(layer.nnz for layer in layers) * WEIGHT_BYTES[cell.precision] / current_machine().copy_bandwidth
    return {
        **vars(cell),
        **{f"{name}_milliseconds": time for name, time in times.items()},
        "times": times["torch"] / times["bound"],
        "floor_milliseconds": 1e3 * least,
        "kernel": kernels,
        "difference": difference,
    }


def _milliseconds(run: Run, call: Callable[[], Any]) -> float:
    return run.timer.time(call, gpu_wait(), most_seconds=run.options.seconds).median


def _refuse(difference: float, tolerance: float, cell: Any) -> None:
    if not difference <= tolerance:
        raise WrongAnswerError(f"{cell}: outputs differ by {difference:.1e}")


def _faster(rows: Sequence[Row]) -> str:
    return f"in {sum(row['times'] >= 1 for row in rows)} of {len(rows)} cells faster than PyTorch"


def few_rows_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=0.2, help="of each timing, at most")
    parser.add_argument("--rows", type=count, nargs="+", default=[1, 8, 16, 64, 128, 1024, 8192])
    parser.add_argument("--precisions", nargs="+", choices=list(WEIGHT_BYTES), default=list(WEIGHT_BYTES))


FEW_ROWS = Table(
    title=lambda options, rows: f"Chains of sparse layers on a GPU: {_faster(rows)}",
    columns=[
        ("precision", "precision"),
        ("width", "width"),
        ("density", "density", "{:.0%}"),
        ("rows", "rows"),
        ("torch_milliseconds", "PyTorch (ms)", "{:.4f}"),
        ("plain_milliseconds", "call (ms)", "{:.4f}"),
        ("tensor_milliseconds", "call with a tensor (ms)", "{:.4f}"),
        ("bound_milliseconds", "bound call (ms)", "{:.4f}"),
        ("times", "× PyTorch", "{:.2f}"),
        ("floor_milliseconds", "floor (ms)", "{:.4f}"),
        ("kernel", "kernel"),
    ],
    cells=lambda options: [
        FewRows(precision, width, density, rows)
        for precision, (width, density), rows in itertools.product(options.precisions, CHAINS, options.rows)
    ],
    measure=few_rows,
    notes=[
        "Median times of calls, rows and outputs on the device. PyTorch multiplies weights with their zeros in the "
        "same precision, captured as one CUDA graph; × PyTorch is its time divided by the bound call's. Outputs were "
        "compared first. The floor is the weights that are left, each with its place, at the device's bandwidth."
    ],
    options=few_rows_options,
    configuration=("rows", "seconds"),
    order=lambda row: row["times"],
    figure="bound_milliseconds",
)

# ---- Convolutions -----------------------------------------------------------------------------------------------

MODELS = ("resnet50", "mobilenet_v2", "resnet18")
PIXELS = 224

TOLERANCE = {"float32": 1e-3, "tf32": 5e-2, "float16": 5e-2}
"""The largest difference of two outputs, as a share of the largest output: of PyTorch's in float32, without TF32."""


@dataclass(frozen=True)
class Images:
    """A model of torchvision, pruned to a share of its weights, with a number of images."""

    network: str
    left: float
    images: int
    precision: str

    def __str__(self) -> str:
        return f"{self.network}-{self.left:g}-{self.images}-{self.precision}"


@lru_cache(maxsize=1)
def model(name: str, left: float) -> tuple[Any, Network]:
    """Return a model on the GPU, and its network."""
    from golden_networks import torchvision_model

    torch.manual_seed(0)
    module = torchvision_model(name, left, PIXELS).eval()
    network = sparsenn.from_torch(module, torch.zeros(1, 3, PIXELS, PIXELS))
    return module.cuda(), network


def torch_milliseconds(module: Any, images: Any, precision: str, run: Run) -> float:
    """Return the time of a module as a graph; in float32 of the faster layout."""
    allow_tf32(precision != "float32")
    kind, found = torch.float16 if precision == "float16" else torch.float32, []
    for layout in (torch.channels_last, torch.contiguous_format)[: 2 if precision == "float32" else 1]:
        own = copy.deepcopy(module).to(dtype=kind, memory_format=layout)
        rows = images.to(dtype=kind, memory_format=layout)
        replay = torch_graph(lambda own=own, rows=rows: own(rows))
        if replay is not None:
            found.append(_milliseconds(run, replay))
        del replay, own, rows
        torch.cuda.empty_cache()
    return min(found)


def images_row(cell: Images, run: Run) -> Row:
    """Check a model and time it beside PyTorch.

    Raises
    ------
    WrongAnswerError
        The outputs differ.
    """
    import cupy

    module, network = model(cell.network, cell.left)
    torch.backends.cudnn.benchmark = True
    allow_tf32(False)
    images = torch.randn(cell.images, 3, PIXELS, PIXELS, device="cuda")
    with torch.no_grad():
        expected = module(images).cpu().numpy()
    rows = cupy.asarray(images)
    with sparsenn.Session(network, device="cuda", precision=cell.precision) as session:
        session(rows)  # measures kernels
        call = session.bind(rows)
        difference = float(np.abs(cupy.asnumpy(call()) - expected).max() / np.abs(expected).max())
        _refuse(difference, TOLERANCE[cell.precision], cell)
        bound = _milliseconds(run, call)
        chosen = [step.kernel for step in session.plan(rows).steps]
        kernels = Counter(kernel.name for kernel in chosen if kernel.operation == CONV_OPERATION)
    del call
    by_torch = torch_milliseconds(module, images, cell.precision, run)
    return {
        **vars(cell),
        "torch_milliseconds": by_torch,
        "bound_milliseconds": bound,
        "times": by_torch / bound,
        "chosen": ", ".join(f"{number} {each}" for each, number in kernels.most_common()),
        "difference": difference,
    }


def images_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--images", nargs="+", type=count, default=[64, 1])
    parser.add_argument("--precisions", nargs="+", choices=list(TOLERANCE), default=list(TOLERANCE))
    parser.add_argument("--left", nargs="+", type=float, default=[0.1, 1.0, 0.05], help="shares of weights")
    parser.add_argument("--seconds", type=float, default=0.2, help="of each timing, at most")


GPU_CONVOLUTIONS = Table(
    title=lambda options, rows: f"torchvision's networks on a GPU: {_faster(rows)}",
    columns=[
        ("network", "network"),
        ("left", "weights", "{:.0%}"),
        ("images", "images"),
        ("precision", "precision"),
        ("torch_milliseconds", "PyTorch (ms)", "{:.3f}"),
        ("bound_milliseconds", "bound call (ms)", "{:.3f}"),
        ("times", "× PyTorch", "{:.2f}"),
        ("chosen", "kernels of convolutions"),
    ],
    cells=lambda options: [
        Images(name, left, images, precision)
        for left, name, images, precision in itertools.product(options.left, MODELS, options.images, options.precisions)
    ],
    measure=images_row,
    notes=[
        f"Images of {PIXELS} × {PIXELS} pixels of random numbers, float32, on the device; medians until outputs are "
        "available. PyTorch multiplies all weights, as one CUDA graph, with cudnn.benchmark and channels last; in "
        "float32 with the faster of both layouts, in float16 on images of float16. × PyTorch is its time over the "
        "bound call's. Outputs were compared first. The largest weights of each layer are left, and all of depthwise "
        "convolutions.",
    ],
    options=images_options,
    configuration=("seconds",),
    figure="bound_milliseconds",
)

TABLES = {"few-rows": FEW_ROWS, "gpu-convolutions": GPU_CONVOLUTIONS}
