"""Hypothesis strategies: sparse matrices, layers, networks and inputs of every shape that must work.

A drawn seed fills the arrays, so that examples are cheap; what matters (shape, density, kind of values, empty rows
and columns) is drawn by itself and shrinks.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from formulas import EXAMPLES
from hypothesis import strategies as st

from sparsenn.formats import COO, CSC, CSR, coo_to_csc, coo_to_csr
from sparsenn.layers import Activation, Linear, ReLU, SparseLinear
from sparsenn.network import Network

__all__ = [
    "activations",
    "biases",
    "coo_matrices",
    "csc_matrices",
    "csr_matrices",
    "inputs_for",
    "layers",
    "linear_layers",
    "mixed_networks",
    "networks",
    "networks_with_inputs",
    "seeds",
    "shapes",
]

MAX_WIDTH = 40
MAX_ROWS = 40
MAX_LAYERS = 6

VALUES = ("ones", "iso", "positive", "negative", "signed", "sixteenths", "stored zeros")
INPUTS = ("binary", "signed", "equal rows", "few distinct rows", "all ones", "empty", "no rows")

seeds = st.integers(0, 2**32 - 1)


def shapes(least: int = 0, most: int = MAX_WIDTH) -> st.SearchStrategy[tuple[int, int]]:
    """Shapes (rows, columns) with lengths in least..most."""
    return st.tuples(st.integers(least, most), st.integers(least, most))


@st.composite
def coo_matrices(draw: st.DrawFn, shape: tuple[int, int] | None = None, dtype: Any = np.float32) -> COO:
    """Valid matrices in shuffled order, of the given shape or any: iso or not, with empty rows and columns."""
    rows, columns = shape or draw(shapes())
    density = draw(st.sampled_from([0.0, 0.05, 0.3, 0.7, 1.0]))
    kind = draw(st.sampled_from(VALUES))
    holes = draw(st.sampled_from([0.0, 0.5]))
    rng = np.random.default_rng(draw(seeds))
    mask = rng.random((rows, columns)) < density
    mask[rng.random(rows) < holes, :] = False
    mask[:, rng.random(columns) < holes] = False
    row, column = np.nonzero(mask)
    order = rng.permutation(row.size)
    return COO.from_arrays((rows, columns), row[order], column[order], _values(rng, kind, row.size).astype(dtype))


def csr_matrices(shape: tuple[int, int] | None = None, dtype: Any = np.float32) -> st.SearchStrategy[CSR]:
    return coo_matrices(shape, dtype).map(coo_to_csr)


def csc_matrices(shape: tuple[int, int] | None = None, dtype: Any = np.float32) -> st.SearchStrategy[CSC]:
    return coo_matrices(shape, dtype).map(coo_to_csc)


def activations() -> st.SearchStrategy[Activation]:
    """Every activation; ReLU without a clip, with the challenge's, and with one that is often reached."""
    return st.sampled_from([ReLU(clip=32.0), ReLU(clip=0.5), *EXAMPLES])


@st.composite
def biases(draw: st.DrawFn, outputs: int) -> float | np.ndarray | None:
    """None, a number, or a vector of `outputs`, each of either sign, also zero."""
    kind = draw(st.sampled_from(["none", "scalar", "negative vector", "positive vector", "mixed vector"]))
    if kind == "none":
        return None
    if kind == "scalar":
        return draw(st.sampled_from([-0.3, -0.45, 0.0, 0.25, 1.5]))
    vector = np.random.default_rng(draw(seeds)).uniform(0.0, 1.0, outputs).astype(np.float32)
    if kind == "mixed vector":
        return vector - np.float32(0.5)
    return -vector if kind == "negative vector" else vector


@st.composite
def layers(draw: st.DrawFn, inputs: int, outputs: int) -> SparseLinear:
    weights = draw(csc_matrices((inputs, outputs)))
    return SparseLinear(weights, draw(biases(outputs)), draw(activations()))


@st.composite
def linear_layers(draw: st.DrawFn, inputs: int, outputs: int) -> Linear:
    weights = draw(csc_matrices((inputs, outputs))).to_scipy().toarray()
    return Linear(weights, draw(biases(outputs)), draw(activations()))


@st.composite
def mixed_networks(draw: st.DrawFn, max_layers: int = MAX_LAYERS, max_width: int = MAX_WIDTH) -> Network:
    """Networks of 1 to `max_layers` layers, each of either kind, at least one of them dense."""
    widths = draw(st.lists(st.integers(1, max_width), min_size=2, max_size=max_layers + 1))
    dense = draw(st.lists(st.booleans(), min_size=len(widths) - 1, max_size=len(widths) - 1).filter(any))
    kinds = [linear_layers if chosen else layers for chosen in dense]
    return Network(tuple(draw(kind(*pair)) for kind, pair in zip(kinds, pairwise(widths), strict=True)))


@st.composite
def networks(draw: st.DrawFn, max_layers: int = MAX_LAYERS, max_width: int = MAX_WIDTH) -> Network:
    """Networks of 1 to `max_layers` layers whose widths are any in 1..max_width."""
    widths = draw(st.lists(st.integers(1, max_width), min_size=2, max_size=max_layers + 1))
    return Network(tuple(draw(layers(*pair)) for pair in pairwise(widths)))


@st.composite
def inputs_for(draw: st.DrawFn, width: int, max_rows: int = MAX_ROWS) -> CSR:
    """Inputs of `width` columns: rows all equal, repeated, empty, all ones, none at all, or any."""
    kind = draw(st.sampled_from(INPUTS))
    rows = 0 if kind == "no rows" else draw(st.integers(1, max_rows))
    if kind == "signed":
        return draw(csr_matrices((rows, width)))
    rng = np.random.default_rng(draw(seeds))
    if kind in ("equal rows", "few distinct rows"):
        distinct = np.round(rng.normal(size=(1 if kind == "equal rows" else 3, width)), 1) * (rng.random(width) < 0.5)
        dense = distinct[rng.integers(0, len(distinct), rows)]
    else:
        dense = rng.random((rows, width)) < {"all ones": 1.0, "empty": 0.0}.get(kind, 0.2)
    row, column = np.nonzero(dense)
    return coo_to_csr(COO.from_arrays((rows, width), row, column, dense[row, column].astype(np.float32)))


@st.composite
def networks_with_inputs(
    draw: st.DrawFn, max_layers: int = MAX_LAYERS, max_width: int = MAX_WIDTH, max_rows: int = MAX_ROWS
) -> tuple[Network, CSR]:
    network = draw(networks(max_layers, max_width))
    return network, draw(inputs_for(network.inputs, max_rows))


def _values(rng: np.random.Generator, kind: str, count: int) -> np.ndarray:
    if kind in ("ones", "iso"):
        return np.full(count, 1.0 if kind == "ones" else rng.choice([0.0625, -0.75, 0.3]))
    if kind == "sixteenths":  # sums of these are exact in float32
        return rng.integers(1, 17, count) * rng.choice([-0.0625, 0.0625], count)
    values = rng.normal(scale=0.5, size=count)
    if kind == "stored zeros":
        return values * (rng.random(count) < 0.7)
    return {"positive": np.abs(values), "negative": -np.abs(values), "signed": values}[kind]
