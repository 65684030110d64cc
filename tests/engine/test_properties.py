"""What must not change an answer: order and number of rows, duplicates, order of neurons, where a network is cut.

Sparse kernels give the same bits; where layers are dense, or `auto` chooses, answers stay within float32's rounding of
the right one, which NumPy and SciPy compute in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from image_strategies import convolutions, images_for
from oracle import expected, outputs_of, run
from strategies import inputs_for, mixed_networks, networks, seeds

from sparsenn import Conv2d, Flatten, Linear, MaxPool2d, Network, Session, Softmax, SparseLinear
from sparsenn.formats import CSC, from_dense
from sparsenn.layers import Identity

ON_GPU = pytest.mark.gpu
SPARSE = pytest.mark.parametrize(
    ("device", "kernel"),
    [
        *(("cpu", name) for name in ("panel", "scatter", "rows")),
        *(pytest.param("cuda", name, marks=ON_GPU) for name in ("resident", "chunks")),
    ],
)
DEVICES = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=ON_GPU)])

Change = Callable[[Network, np.ndarray, np.random.Generator], Any]


@st.composite
def problems(draw: st.DrawFn, kinds: Callable[..., Any] = networks) -> tuple[Network, np.ndarray, np.random.Generator]:
    """A network, dense float32 rows for it, at least one, and random numbers."""
    network = draw(kinds(max_layers=4))
    rows = draw(inputs_for(network.inputs).filter(lambda inputs: inputs.shape[0] > 0))
    return network, rows.to_scipy().toarray().astype(np.float32), np.random.default_rng(draw(seeds))


# ---- Ways to ask the same -------------------------------------------------------------------------------------------
# Each returns the outputs of the rows in their order, found in another way than by one call with all of them.


def permuted_rows(call: Any, network: Network, rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    order = rng.permutation(len(rows))
    found = np.empty((len(rows), network.outputs), np.float32)
    found[order] = call(network, rows[order])
    return found


def one_by_one(call: Any, network: Network, rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return np.concatenate([call(network, rows[at : at + 1]) for at in range(len(rows))])


def batches(call: Any, network: Network, rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return call(network, rows, batch_size=int(rng.integers(1, len(rows) + 2)))


def duplicated_rows(call: Any, network: Network, rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    order = rng.permutation(np.repeat(np.arange(len(rows)), 3))
    found = np.empty((len(rows), network.outputs), np.float32)
    found[order] = call(network, rows[order])
    return found


def concatenated_inputs(call: Any, network: Network, rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    cut = int(rng.integers(0, len(rows) + 1))
    return np.concatenate([call(network, rows[:cut]), call(network, rows[cut:])])


def with_rows_of_zeros(call: Any, network: Network, rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return call(network, np.concatenate([np.zeros_like(rows), rows]))[len(rows) :]


def split_network(call: Any, network: Network, rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    for part in (network.layers[at : at + 1] for at in range(len(network))):
        rows = call(Network(part), rows)
    return rows


def permuted_outputs(call: Any, network: Network, rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    order = rng.permutation(network.outputs)
    last = reordered(network[-1], np.arange(network.sizes[-2]), order)
    found = np.empty((len(rows), network.outputs), np.float32)
    found[:, order] = call(Network((*network.layers[:-1], last)), rows)
    return found


def permuted_neurons(call: Any, network: Network, rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Hidden neurons in another order, and inputs: sums are added up in another order, too."""
    before = first = rng.permutation(network.inputs)
    layers = []
    for number, layer in enumerate(network, start=1):
        after = rng.permutation(layer.outputs) if number < len(network) else np.arange(layer.outputs)
        layers.append(reordered(layer, before, after))
        before = after
    return call(Network(tuple(layers)), rows[:, first])


def reordered(layer: Any, inputs: np.ndarray, outputs: np.ndarray) -> Any:
    """Return a layer whose inputs and outputs come in these orders."""
    bias = layer.bias[outputs] if isinstance(layer.bias, np.ndarray) else layer.bias
    if isinstance(layer, Linear):
        return Linear(layer.weights[inputs][:, outputs], bias, layer.activation)
    matrix = layer.weights.to_scipy().tocsr()[inputs][:, outputs]
    return SparseLinear(CSC.from_scipy(matrix), bias, layer.activation)


SAME_BITS = (
    permuted_rows,
    one_by_one,
    batches,
    duplicated_rows,
    concatenated_inputs,
    with_rows_of_zeros,
    split_network,
    permuted_outputs,
)


# ---- Sparse kernels: the same bits ----------------------------------------------------------------------------------


@SPARSE
@pytest.mark.parametrize("way", SAME_BITS)
@given(problem=problems())
def test_sparse_kernels_give_the_same_bits(way: Any, device: str, kernel: str, problem: Any) -> None:
    network, rows, rng = problem

    def call(network: Network, rows: np.ndarray, **options: Any) -> np.ndarray:
        given_rows = from_dense(rows) if rng.random() < 0.5 else rows
        with Session(network, device=device, kernel=kernel, merging=False, **options) as session:
            return session(given_rows, form="dense")

    assert np.array_equal(way(call, network, rows, rng), call(network, rows), equal_nan=True)


# ---- All others: within float32's rounding --------------------------------------------------------------------------


@DEVICES
@pytest.mark.parametrize("kinds", [networks, mixed_networks])
@pytest.mark.parametrize("way", [*SAME_BITS, permuted_neurons])
@given(data=st.data())
def test_answers_stay_within_rounding_of_the_right_one(way: Any, kinds: Any, device: str, data: st.DataObject) -> None:
    network, rows, rng = data.draw(problems(kinds))
    values, error = expected(network, from_dense(rows))

    def call(network: Network, rows: np.ndarray, **options: Any) -> np.ndarray:
        with Session(network, device=device, **options) as session:
            return session(rows)

    assert (np.abs(way(call, network, rows, rng) - values) <= error).all()


@st.composite
def image_problems(draw: st.DrawFn) -> tuple[Network, np.ndarray, np.random.Generator]:
    """A convolution, a pooling and a dense layer, whose sums are exact, and rows of images, at least one."""
    layer, image = draw(convolutions())
    rng = np.random.default_rng(draw(seeds))
    exact = replace(layer, weights=rng.integers(-2, 3, layer.weights.shape) / 4, bias=0.25, activation=Identity())
    _, channels, height, width = exact.output_shape((1, *image))
    pool = MaxPool2d((min(2, height), min(2, width)))
    size = channels * (height // min(2, height)) * (width // min(2, width))
    last = Linear(rng.integers(-2, 3, (size, 5)) / 4, 0.5, Identity())
    rows = np.round(4 * draw(images_for(image).filter(len))) / 4
    return Network((exact, pool, Flatten(), last), image), rows.reshape(len(rows), -1).astype(np.float32), rng


@DEVICES
@pytest.mark.parametrize(
    "way", [permuted_rows, one_by_one, batches, duplicated_rows, concatenated_inputs, with_rows_of_zeros]
)
@given(problem=image_problems())
def test_networks_of_images_whose_sums_are_exact_are_exact(way: Any, device: str, problem: Any) -> None:
    network, rows, rng = problem

    def call(network: Network, rows: np.ndarray, **options: Any) -> np.ndarray:
        with Session(network, device=device, **options) as session:
            return session(rows)

    assert np.array_equal(way(call, network, rows, rng), run(network, rows))


@DEVICES
@given(convolutions(), st.data())
def test_whole_networks_of_images_are_right(device: str, drawn: Any, data: st.DataObject) -> None:
    layer, image = drawn
    network = Network((layer, Softmax()), image)
    images = data.draw(images_for(image).filter(len))
    with Session(network, device=device) as session:
        found = session(images)
    sums = np.abs(
        outputs_of(Conv2d(layer.weights, layer.bias, Identity(), *layer.sliding_window[1:], layer.groups), images)
    )
    scale = 1 + sums.max(initial=0.0)
    np.testing.assert_allclose(found, run(network, images), rtol=1e-4 * scale, atol=1e-6)
