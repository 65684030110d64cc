"""Every kernel for a product of matrices, and for a stack of dense layers: tables gemm and mlp."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from ceilings import cublas_precision
from ladders import (
    ERRORS,
    FLOOR_NOTE,
    MIDDLE,
    QUEUED_NOTE,
    RATE,
    SAMPLE,
    Ladder,
    Work,
    add_options,
    in_turn,
    ladder_configuration,
    machine,
    random_inputs,
    rung_rows,
    sample_of,
)
from peers import allow_tf32, fused_call, torch, torch_graph
from record import Row, Table, count
from timing import Timing, between_events, captured, queued

from sparsenn.backends import Kernel
from sparsenn.layers import Identity, Linear, ReLU

# ---- Products ---------------------------------------------------------------------------------------------------

SIZES = (
    (1024, 1024, 1024),
    (2048, 2048, 2048),
    (4096, 4096, 4096),
    (8192, 8192, 8192),
    (1 << 20, 64, 64),
    (65_536, 512, 16),
    (64, 65_536, 64),
)
"""Rows, terms of a sum, columns."""


class GemmWork(Work):
    """Pairs of matrices."""

    def __init__(self, size: tuple[Any, ...], kind: str) -> None:
        rows, depth, columns = (int(word.replace(",", "")) for word in size[0].split(" × "))
        self.moved = np.dtype(kind).itemsize * (rows * depth + depth * columns + rows * columns)
        self.multiply_adds = rows * depth * columns
        pairs = (random_inputs((rows, depth), kind, self.moved), random_inputs((depth, columns), kind, self.moved))
        self.inputs = list(zip(*pairs, strict=True))
        self.sample = sample_of(rows)

    def accepts(self, rung: Kernel) -> bool:
        return rung.why_not(machine(), *self.inputs[0]) is None

    def launch(self, rung: Kernel, inputs: Any) -> Any:
        return rung.launch(*inputs)

    def sampled(self, outputs: Any) -> Any:
        return outputs[self.sample]

    def exact(self) -> Any:
        a, b = self.inputs[0]
        return a[self.sample].astype(np.float64) @ b.astype(np.float64)

    def plain(self) -> Any:
        a, b = (matrix.astype(np.float32, copy=False) for matrix in self.inputs[0])
        return (a @ b)[self.sample]

    def peers(self, precision: str) -> Row:
        """Time cuBLAS; of half precision with matrices that are float16 already."""
        import cupy

        kind = np.float16 if precision == "float16" else np.float32
        pairs = [tuple(matrix.astype(kind, copy=False) for matrix in pair) for pair in self.inputs]
        out = cupy.empty((pairs[0][0].shape[0], pairs[0][1].shape[1]), kind)
        with cublas_precision(precision):
            return {"peer_milliseconds": in_turn(lambda pair: cupy.matmul(*pair, out=out), pairs).median}


GEMM = Ladder("gemm", ("sizes",), GemmWork, library="library")


def sizes_from(text: str) -> tuple[int, ...]:
    """Return sizes written as M,K,N."""
    rows, depth, columns = map(int, text.split(","))
    return rows, depth, columns


def gemm_options(parser: argparse.ArgumentParser) -> None:
    add_options(parser)
    parser.add_argument("--sizes", type=sizes_from, nargs="+", default=list(SIZES), metavar="M,K,N")


GEMM_TABLE = Table(
    title="Products of dense matrices, kernel by kernel, beside cuBLAS",
    columns=[
        ("sizes", "rows × terms × columns"),
        *MIDDLE,
        *RATE,
        ("peer_milliseconds", "cuBLAS (ms)", "{:,.3f}"),
        ("over_peer", "× cuBLAS", "{:.2f}"),
        *ERRORS,
        ("runs", "runs"),
    ],
    cells=lambda options: GEMM.cells([(" × ".join(f"{n:,}" for n in sizes),) for sizes in options.sizes], options),
    measure=rung_rows,
    notes=[
        QUEUED_NOTE,
        "cuBLAS is called through CuPy; of half precision with matrices that are float16 already.",
        FLOOR_NOTE,
        f"Error: largest difference from float64 on {SAMPLE} rows, relative to the largest element; plain float32 is "
        "cuBLAS on the same matrices.",
    ],
    options=gemm_options,
    configuration=ladder_configuration,
    limit=110.0,
)

# ---- Stacks of dense layers -------------------------------------------------------------------------------------

WIDTHS = (72, 64, 64, 4)
GRAPH_RUNS, MOST_IN_GRAPH = 30, 64
MLP_SAMPLE = 12_800


class MlpWork(Work):
    """Rows in a stack of dense layers, ReLU after all but the last; calls are timed in a captured graph."""

    def __init__(self, size: tuple[Any, ...], kind: str) -> None:
        import cupy

        from sparsenn.backends.cuda.dense.stack import upload_dense

        (rows,), rng = size, np.random.default_rng(3)
        self.layers = tuple(
            Linear(
                rng.normal(size=shape) * math.sqrt(2 / shape[0]),
                rng.normal(size=shape[1]) / 4,
                Identity() if number == len(WIDTHS) - 1 else ReLU(),
            )
            for number, shape in enumerate(pairwise(WIDTHS), start=1)
        )
        self.stack = upload_dense(cupy.cuda.runtime.getDevice(), self.layers)
        item = np.dtype(kind).itemsize
        self.moved = rows * (WIDTHS[0] + WIDTHS[-1]) * item
        self.multiply_adds = rows * sum(a * b for a, b in pairwise(WIDTHS))
        self.inputs = random_inputs((rows, WIDTHS[0]), kind, rows * WIDTHS[0] * item, MOST_IN_GRAPH)

    def accepts(self, rung: Kernel) -> bool:
        return rung.why_not(machine(), self.layers) is None

    def launch(self, rung: Kernel, inputs: Any) -> Any:
        return rung.launch(self.stack, inputs)

    def sampled(self, outputs: Any) -> Any:
        return outputs[:MLP_SAMPLE]

    def exact(self) -> Any:
        import cupy as cp

        values = self.inputs[0][:MLP_SAMPLE].astype(np.float64)
        for layer in self.layers:
            values = values @ cp.asarray(layer.weights, np.float64) + cp.asarray(layer.bias_vector(), np.float64)
            values = cp.maximum(values, 0) if isinstance(layer.activation, ReLU) else values
        return values

    def plain(self) -> Any:
        return self._cublas(np.float32, min(MLP_SAMPLE, len(self.inputs[0])))(
            self.inputs[0][:MLP_SAMPLE].astype(np.float32)
        )

    def time(self, rung: Kernel) -> Timing:
        return captured([partial(self.launch, rung, features) for features in self.inputs], GRAPH_RUNS)

    def peers(self, precision: str) -> Row:
        """Time cuBLAS, queued one by one, and PyTorch: layer by layer, as a graph, and that with ReLU in products."""
        count, cublas = len(self.inputs), self._cublas(self.inputs[0].dtype, len(self.inputs[0]))
        with cublas_precision(precision):
            times = {"cublas": queued(lambda: [cublas(features) for features in self.inputs]).median / count}
        if torch is not None:
            times |= self._torch(precision)
        columns = ("torch_eager", "torch_graph", "torch_fused", "cublas")
        return {f"{name}_milliseconds": times.get(name) for name in columns} | {
            "peer_milliseconds": min(times.values())
        }

    def _cublas(self, kind: Any, rows: int) -> Callable[[Any], Any]:
        """Return a product by cuBLAS and one further kernel for bias and ReLU, a layer."""
        import cupy as cp

        layers = [
            (
                cp.asarray(layer.weights, kind),
                cp.asarray(layer.bias_vector(), kind),
                _finish(isinstance(layer.activation, ReLU)),
                cp.empty((rows, layer.outputs), kind),
            )
            for layer in self.layers
        ]

        def run(features: Any) -> Any:
            for weights, bias, finish, sums in layers:
                cp.matmul(features, weights, out=sums)
                finish(bias, sums)
                features = sums
            return features

        return run

    def _torch(self, precision: str) -> dict[str, float]:
        allow_tf32(precision == "tf32")
        kind = torch.float16 if self.inputs[0].dtype == np.float16 else torch.float32
        rows = [torch.from_dlpack(features) for features in self.inputs]
        layers = [
            (
                torch.from_numpy(layer.weights.T.copy()).to("cuda", kind),
                torch.from_numpy(layer.bias_vector()).to("cuda", kind),
                isinstance(layer.activation, ReLU),
            )
            for layer in self.layers
        ]

        def plain(features: Any) -> Any:
            for weights, bias, is_relu in layers:
                features = torch.nn.functional.linear(features, weights, bias)
                features = torch.relu(features) if is_relu else features
            return features

        calls: dict[str, Any] = {
            "torch_eager": lambda: [plain(features) for features in rows],
            "torch_graph": torch_graph(lambda: [plain(features) for features in rows]),
            "torch_fused": torch_graph(lambda: [fused_call(layers, features)() for features in rows]),
        }
        with torch.no_grad():
            return {
                name: between_events(call, GRAPH_RUNS, len(rows)).median
                for name, call in calls.items()
                if call is not None
            }


def _finish(is_relu: bool) -> Any:
    import cupy

    code = "sum += bias;" + ("sum = sum < T(0) ? T(0) : sum;" if is_relu else "")
    return cupy.ElementwiseKernel("T bias", "T sum", code, f"finish_{is_relu}")


MLP = Ladder("mlp", ("rows",), MlpWork, library="cublas")


def mlp_options(parser: argparse.ArgumentParser) -> None:
    add_options(parser)
    parser.add_argument("--rows", type=count, nargs="+", default=[12_800, 5_120_000])


MLP_TABLE = Table(
    title=f"The dense network {'-'.join(map(str, WIDTHS))}, kernel by kernel, beside PyTorch and cuBLAS",
    columns=[
        ("rows", "rows", "{:,}"),
        *MIDDLE,
        RATE[1],
        ("torch_eager_milliseconds", "PyTorch (ms)", "{:,.4f}"),
        ("torch_graph_milliseconds", "its graph (ms)", "{:,.4f}"),
        ("torch_fused_milliseconds", "with fused ReLU (ms)", "{:,.4f}"),
        ("cublas_milliseconds", "cuBLAS (ms)", "{:,.4f}"),
        ("over_peer", "× the best of them", "{:.2f}"),
        *ERRORS,
    ],
    cells=lambda options: MLP.cells([(rows,) for rows in options.rows], options),
    measure=rung_rows,
    notes=[
        "Time per call in a captured graph that cycles through enough inputs to exceed all caches; PyTorch's "
        f"first column is without a graph, and cuBLAS's calls are queued one by one. Medians of {GRAPH_RUNS} graphs. "
        "Spread: interquartile range.",
        FLOOR_NOTE,
        f"Error: largest difference from float64 on {MLP_SAMPLE:,} rows, relative to the largest output; plain float32 "
        "is cuBLAS on the same features.",
    ],
    options=mlp_options,
    configuration=ladder_configuration,
    limit=80.0,
)

TABLES = {"gemm": GEMM_TABLE, "mlp": MLP_TABLE}
