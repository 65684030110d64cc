"""Chains of dense layers: random ones, what they give in float64, and what a kernel gives on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from sparsenn.backends.cuda.dense.stack import upload_dense
from sparsenn.backends.cuda.runtime.device import cupy
from sparsenn.layers import Activation, Identity, Linear, ReLU

__all__ = ["exact", "launched", "layers_of"]


def layers_of(
    rng: np.random.Generator,
    widths: Sequence[int],
    activations: Sequence[Activation] | None = None,
    integers: int = 0,
    biased: bool = True,
) -> tuple[Linear, ...]:
    """Return layers whose outputs are about as large as their inputs.

    Parameters
    ----------
    activations : of each layer; ReLU but for the last unless given.
    integers : how large whole numbers are that weights are; normal numbers unless given.
    """
    activations = activations or [ReLU()] * (len(widths) - 2) + [Identity()]
    made = []
    for shape, activation in zip(pairwise(widths), activations, strict=True):
        if integers:
            weights, bias = rng.integers(-integers, integers + 1, shape), rng.integers(-4, 5, shape[1])
        else:
            weights, bias = rng.normal(size=shape) * np.sqrt(2 / shape[0]), rng.normal(size=shape[1]) / 4
        made.append(Linear(weights, bias if biased else None, activation))
    return tuple(made)


def exact(layers: Sequence[Linear], features: np.ndarray) -> np.ndarray:
    """Return the outputs in float64."""
    values = features.astype(np.float64)
    for layer in layers:
        values = layer.activation(values @ layer.weights.astype(np.float64) + layer.bias_vector())
    return values


def launched(kernel: Any, layers: Sequence[Linear], features: np.ndarray) -> np.ndarray:
    """Return the outputs of a kernel of mlp, which leaves its inputs as they are."""
    given = cupy().asarray(features)
    found = kernel.launch(upload_dense(0, layers), given)
    assert found.dtype == features.dtype
    assert found.flags.c_contiguous
    assert np.array_equal(cupy().asnumpy(given), features, equal_nan=True)
    return cupy().asnumpy(found)
