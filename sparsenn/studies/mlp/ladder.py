"""The ladder of `mlp`: a stack of dense layers with random weights, on random rows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from sparsenn.backends.contract import Backend
from sparsenn.backends.cpu.dense import REGISTER_TILED
from sparsenn.backends.cuda import CUDABackend
from sparsenn.backends.cuda.dense import cublas, fused, warpgroup
from sparsenn.backends.oracle.dense import REFERENCE, forward
from sparsenn.errors import ResourceError, UsageError
from sparsenn.formats import Array
from sparsenn.layers import Identity, Linear, ReLU
from sparsenn.runtime.workers import chunks
from sparsenn.studies.ladder import Ladder, Settled, Work
from sparsenn.studies.mlp import float32, half
from sparsenn.studies.mlp.host import BLAS
from sparsenn.studies.sampling import ALLOWED

BATCH = 1 << 16  # rows compared at a time

BIAS = 0.1
"""Standard deviation of random biases: small beside the sums, which are about 1."""


def allowed_error(layers: Sequence[Linear]) -> float:
    """Return how far float32 results may be from the exact ones, in parts of the largest output.

    A number passes through at most n + 1 roundings in a layer of n inputs, in whatever order they are added: n products
    and sums (one each where they are fused), and the bias. Each moves it by 2^-24 of itself at most, and the roundings
    of all layers add up. Where signs differ a sum is smaller than its parts; but then, so are roundings'.
    """
    return float(sum(layer.inputs + 1 for layer in layers) * 2.0**-24)


def random_problem(rows: int, widths: Sequence[int], seed: int) -> tuple[tuple[Linear, ...], Array]:
    """Return layers with random weights, and random features.

    Weights are normal with variance 2 / inputs, which keeps the size of what passes through ReLU (He et al., 2015,
    arXiv:1502.01852); biases and features are normal, too. ReLU follows every layer but the last.

    Returns the layers, and features of shape (rows, widths[0]), float32.
    """
    if rows < 1 or len(widths) < 2 or min(widths) < 1 or seed < 0:
        raise UsageError(
            f"{rows} rows, widths {','.join(map(str, widths))} and seed {seed} make no problem; that takes at least "
            "1 row, 2 widths of at least 1 each, and a seed of at least 0"
        )
    random = np.random.default_rng(seed)
    layers = []
    try:
        for number, (inputs, outputs) in enumerate(pairwise(widths), start=2):
            weights = random.standard_normal((inputs, outputs), np.float32)
            weights *= np.float32(np.sqrt(2 / inputs))
            bias = np.float32(BIAS) * random.standard_normal(outputs, np.float32)
            layers.append(Linear(weights, bias, ReLU() if number < len(widths) else Identity()))
        return tuple(layers), random.standard_normal((rows, widths[0]), np.float32)
    except (MemoryError, ValueError) as error:  # NumPy raises the latter for sizes beyond its largest
        raise ResourceError(
            f"{rows:,} rows and layers of {','.join(map(str, widths))} do not fit into memory; take fewer "
            "--rows, or smaller --widths"
        ) from error


class NetworkStage:
    """All layers at once, on all rows: (rows, inputs) float32, on the host."""

    def __init__(self, backend: Backend, layers: Sequence[Linear], features: Array) -> None:
        self._backend = backend
        self._given = _placed(backend, layers, features)
        self._expected = forward(layers, features)
        self._scale = float(max(self._expected.max(initial=0.0), -self._expected.min(initial=0.0))) or 1.0
        self._allowed = allowed_error(layers)
        self.work = Work(
            bytes=sum(layer.weights.nbytes + 4 * layer.outputs for layer in layers)
            + features.nbytes
            + 4 * self._expected.size,
            multiply_adds=features.shape[0] * sum(layer.edges for layer in layers),
        )

    def arguments(self, carried: Any) -> tuple[Any, ...]:
        """Return the layers and the features, on the device."""
        return self._given

    def settle(self, output: Any) -> Settled:
        """Compare every output; nothing is carried on, and NaN is infinitely far away."""
        found = output if isinstance(output, np.ndarray) else self._backend.fetch(output)
        error = np.inf
        if isinstance(found, np.ndarray) and found.shape == self._expected.shape:
            batches = chunks(found.shape[0], BATCH)
            error = max((self._difference(found, *batch) for batch in batches), default=0.0) / self._scale
        return Settled(None, error, error <= self._allowed, ALLOWED)

    def _difference(self, found: Array, first: int, last: int) -> float:
        largest = float(np.abs(found[first:last] - self._expected[first:last]).max(initial=0.0))
        return largest if np.isfinite(largest) else np.inf


def _placed(backend: Backend, layers: Sequence[Linear], features: Array) -> tuple[Any, Any]:
    return backend.prepare(layers), backend.place(features) if isinstance(backend, CUDABackend) else features


LADDER = Ladder(
    "mlp",
    "network",
    lambda *problem: (NetworkStage(*problem),),
    rungs={
        "cuda": (
            *float32.KERNELS,
            *half.KERNELS,
            fused.FUSED_FMA,
            fused.TENSOR_FLOAT32,
            fused.TENSOR_TF32,
            fused.TENSOR_HALF,
            *warpgroup.KERNELS,
            cublas.CUBLAS_TF32,
            cublas.CUBLAS_FLOAT16,
            cublas.CUBLAS,  # no rungs, the last three, but what they are held against
        ),
        "reference": (REFERENCE,),
        "cpu": (BLAS, REGISTER_TILED),
    },
    problem=random_problem,
    rows=12_800,
    sizes=(72, 64, 64, 4),
    asked=lambda layers, features: (layers,),
    scaled=True,
)
