"""Networks on a GPU beside PyTorch as one CUDA graph: tables few-rows and gpu-convolutions.

Rows are on the device. PyTorch multiplies all weights, with their zeros, in the same precision. Outputs are compared
first.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np
from cases import stratified
from peers import allow_tf32, torch, torch_graph
from record import Row, Run, Table, WrongAnswerError, cases_of
from timing import gpu_wait

import sparsenn
from sparsenn import Network
from sparsenn.backends.kernel_records import CONV_OPERATION

# ---- Few rows ---------------------------------------------------------------------------------------------------

LAYERS = 3
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


@lru_cache(maxsize=1)
def chain_of(width: int, density: float) -> Network:
    return stratified((width,) * (LAYERS + 1), (int(width * density),) * LAYERS)


def few_rows(precision: str, width: int, density: float, count: int, run: Run) -> Row:
    """Check a chain, and time a bound call and plain ones beside PyTorch's graph.

    Raises
    ------
    WrongAnswerError
        The outputs differ.
    """
    import cupy

    from sparsenn.backends.cuda.runtime.device import current_machine

    allow_tf32(False)
    network = chain_of(width, density)
    kind = torch.float16 if precision == "float16" else torch.float32
    arrays = [(layer.bias_vector(), layer.weights.to_scipy().toarray()) for layer in network]
    tensors = [[torch.tensor(each, device="cuda").to(kind) for each in pair] for pair in arrays]
    tensor = torch.rand(count, width, device="cuda").to(kind)

    def products() -> Any:
        features = tensor
        for bias, weights in tensors:
            features = torch.relu(torch.addmm(bias, features, weights))
        return features

    replay = torch_graph(products)
    if replay is None:
        raise RuntimeError("PyTorch does not capture its products")
    expected, rows = cupy.asarray(replay()).astype(np.float32), cupy.asarray(tensor)
    with sparsenn.Session(network, device="cuda", precision=precision) as session:
        bound = session.bind(rows)
        difference = float(abs(bound().astype(np.float32) - expected).max() / abs(expected).max())
        _refuse(difference, FEW_TOLERANCE[precision], run)
        calls: dict[str, Callable[[], Any]] = {
            "bound": bound,
            "torch": replay,
            "plain": lambda: session(rows),
            "tensor": lambda: session(tensor),
        }
        times = {name: _milliseconds(run, call) for name, call in calls.items()}
        kernels = ", ".join(dict.fromkeys(kernel.name for kernel in session.plan(rows).kernels))
    least = sum(layer.edges for layer in network) * WEIGHT_BYTES[precision] / current_machine().copy_bandwidth
    return {
        **{f"{name}_milliseconds": time for name, time in times.items()},
        "times": times["torch"] / times["bound"],
        "floor_milliseconds": 1e3 * least,
        "kernel": kernels,
        "difference": difference,
    }


def _milliseconds(run: Run, call: Callable[[], Any]) -> float:
    return run.timer.time(call, gpu_wait(), most_seconds=run.options.seconds).median


def _refuse(difference: float, tolerance: float, run: Run) -> None:
    if not difference <= tolerance:
        raise WrongAnswerError(f"{run.case}: outputs differ by {difference:.1e}")


def _faster(rows: Sequence[Row]) -> str:
    return f"in {sum(row['times'] >= 1 for row in rows)} of {len(rows)} cells faster than PyTorch"


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
    cases=lambda options: cases_of(
        few_rows,
        "precision width density rows",
        [(precision, *chain, rows) for precision, chain, rows in product(WEIGHT_BYTES, CHAINS, options.rows)],
    ),
    notes=[
        "Median times of calls, rows and outputs on the device. PyTorch multiplies weights with their zeros in the "
        "same precision, captured as one CUDA graph; × PyTorch is its time divided by the bound call's. Outputs were "
        "compared first. The floor is the weights that are left, each with its place, at the device's bandwidth."
    ],
    options={"seconds": 0.2, "rows": [1, 8, 16, 64, 128, 1024, 8192]},
    order=lambda row: row["times"],
)

# ---- Convolutions -----------------------------------------------------------------------------------------------

MODELS = ("resnet50", "mobilenet_v2", "resnet18")
SHARES = (0.1, 1.0, 0.05)
PIXELS = 224

TOLERANCE = {"float32": 1e-3, "tf32": 5e-2, "float16": 5e-2}
"""The largest difference of two outputs, as a share of the largest output: of PyTorch's in float32, without TF32."""


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


def images_row(name: str, left: float, count: int, precision: str, run: Run) -> Row:
    """Check a model and time it beside PyTorch.

    Raises
    ------
    WrongAnswerError
        The outputs differ.
    """
    import cupy

    module, network = model(name, left)
    torch.backends.cudnn.benchmark = True
    allow_tf32(False)
    images = torch.randn(count, 3, PIXELS, PIXELS, device="cuda")
    with torch.no_grad():
        expected = module(images).cpu().numpy()
    rows = cupy.asarray(images)
    with sparsenn.Session(network, device="cuda", precision=precision) as session:
        session(rows)  # measures kernels
        call = session.bind(rows)
        difference = float(np.abs(cupy.asnumpy(call()) - expected).max() / np.abs(expected).max())
        _refuse(difference, TOLERANCE[precision], run)
        bound = _milliseconds(run, call)
        chosen = [step.kernel for step in session.plan(rows).steps]
        kernels = Counter(kernel.name for kernel in chosen if kernel.operation == CONV_OPERATION)
    del call
    by_torch = torch_milliseconds(module, images, precision, run)
    return {
        "torch_milliseconds": by_torch,
        "bound_milliseconds": bound,
        "times": by_torch / bound,
        "chosen": ", ".join(f"{number} {each}" for each, number in kernels.most_common()),
        "difference": difference,
    }


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
    cases=lambda options: cases_of(
        images_row,
        "network left images precision",
        [(name, left, *each) for left, name, *each in product(SHARES, MODELS, options.images, TOLERANCE)],
    ),
    notes=[
        f"Images of {PIXELS} × {PIXELS} pixels of random numbers, float32, on the device; medians until outputs are "
        "available. PyTorch multiplies all weights, as one CUDA graph, with cudnn.benchmark and channels last; in "
        "float32 with the faster of both layouts, in float16 on images of float16. × PyTorch is its time over the "
        "bound call's. Outputs were compared first. The largest weights of each layer are left, and all of depthwise "
        "convolutions.",
    ],
    options={"seconds": 0.2, "images": [64, 1]},
)

TABLES = {"few-rows": FEW_ROWS, "gpu-convolutions": GPU_CONVOLUTIONS}
