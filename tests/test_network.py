from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from strategies import networks

from sparsenn.errors import InputError, MatrixError, ShapeError, UsageError
from sparsenn.layers import (
    Add,
    AvgPool2d,
    Conv2d,
    Flatten,
    Identity,
    Linear,
    MaxPool2d,
    ReLU,
    Sigmoid,
    Softmax,
    SparseLinear,
    Tanh,
)
from sparsenn.network import Network, Node
from sparsenn.printable import kind_of


def ones(inputs: int, outputs: int, **parameters: Any) -> SparseLinear:
    return SparseLinear.from_scipy(sp.csr_array(np.ones((inputs, outputs))), **parameters)


def test_hand_made_case() -> None:
    first, second = ones(3, 5), ones(5, 2)
    network = Network((first, second))
    assert (network.inputs, network.outputs, network.widest, network.edges) == (3, 2, 5, 25)
    assert list(network) == [first, second]
    assert network[-1] is second


def test_layers_may_come_in_any_iterable_and_be_cut_off() -> None:
    listed = [ones(2, 3), ones(3, 4)]
    for given_layers in (listed, iter(listed)):
        network = Network(given_layers)  # type: ignore[arg-type]
        assert network.layers == tuple(listed)
    listed.clear()
    assert len(network) == 2
    assert network.prefix(2).layers == network.layers
    assert network.prefix(1).layers == network.layers[:1]


@pytest.mark.parametrize(
    ("widths", "message"),
    [
        (((2, 3), (4, 5)), "layer 2 takes 4 inputs, but layer 1 gives 3"),
        (((2, 3), (3, 5), (6, 5)), "layer 3 takes 6 inputs, but layer 2 gives 5"),
        (((2, 3), (4, 5), (6, 5)), "layer 2 takes 4"),
    ],
)
def test_widths_that_differ_name_the_layer(widths: tuple[tuple[int, int], ...], message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        Network(tuple(ones(*pair) for pair in widths))


@given(networks())
def test_random_networks(network: Network) -> None:
    shape: tuple[int, ...] = (5, network.inputs)
    for layer in network:
        shape = layer.output_shape(shape)
        assert layer.weights.validate() is layer.weights
    assert shape == (5, network.outputs)
    assert network.widest == max(max(layer.inputs, layer.outputs) for layer in network)
    assert network.edges == sum(layer.weights.indices.size for layer in network)


def test_with_bias_changes_the_bias_alone() -> None:
    network = Network((ones(2, 3, bias=1.0, activation=Tanh()), ones(3, 4)))
    changed = network.with_bias(-0.3)
    assert [layer.bias for layer in changed] == [-0.3, -0.3]
    assert [layer.activation for layer in changed] == [Tanh(), ReLU()]
    assert all(new.weights is old.weights for new, old in zip(changed, network, strict=True))
    assert [layer.bias for layer in network] == [1.0, None]


def test_from_scipy() -> None:
    matrices = [sp.csr_array(np.ones((2, 3))), sp.coo_matrix(np.ones((3, 4)))]
    network = Network.from_scipy(matrices, bias=-0.5, activation=Sigmoid())
    assert (network.inputs, network.outputs, network.edges) == (2, 4, 18)
    assert {(layer.bias, layer.activation) for layer in network} == {(-0.5, Sigmoid())}
    assert [layer.activation for layer in Network.from_scipy(iter(matrices))] == [ReLU(), ReLU()]


@pytest.mark.parametrize(
    ("second", "bias", "error", "message"),
    [
        (np.full((3, 3), np.nan), None, MatrixError, "layer 2: entry 0: the value nan is not finite"),
        (np.ones((3, 4)), np.zeros(3), ShapeError, r"layer 2: the bias has shape \(3,\); 4 outputs take \(4,\)"),
        (np.ones((3, 3)), np.nan, InputError, "layer 1: the bias holds NaN"),
        (np.ones((4, 4)), None, ShapeError, "layer 2 takes 4 inputs, but layer 1 gives 3"),
    ],
)
def test_from_scipy_names_the_layer(second: Any, bias: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as raised:
        Network.from_scipy([sp.csr_array(np.ones((3, 3))), sp.csr_array(second)], bias)
    assert raised.type is error


def test_from_scipy_of_dense_matrices() -> None:
    network = Network.from_scipy([np.full((2, 3), 0.5), sp.csr_array(np.ones((3, 3))), [[1, 2], [3, 4], [5, 6]]])
    assert [type(layer) for layer in network] == [Linear, SparseLinear, Linear]
    assert isinstance(network[0], Linear)
    np.testing.assert_array_equal(network[0].weights, np.full((2, 3), 0.5))
    assert {layer.activation for layer in network} == {ReLU()}  # type: ignore[union-attr]


def test_from_scipy_with_a_bias_and_an_activation_a_layer() -> None:
    matrices = [sp.csr_array(np.ones((2, 3))), np.ones((3, 4)), np.ones((4, 1))]
    network = Network.from_scipy(matrices, bias=[np.arange(3), None, -1], activation=(None, Tanh(), Identity()))
    first, second, third = network.layers
    assert isinstance(first, SparseLinear)
    np.testing.assert_array_equal(first.bias_vector(), [0, 1, 2])
    assert [layer.bias for layer in (second, third)] == [None, -1]  # type: ignore[union-attr]
    assert [layer.activation for layer in network] == [ReLU(), Tanh(), Identity()]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"bias": [0, 0, 0]}, "3 biases are given for 2 layers; give a list of one per layer"),
        ({"activation": [ReLU()]}, "1 activations are given for 2 layers"),
        ({"bias": [0, np.zeros(2)]}, r"layer 2: the bias has shape \(2,\); 3 outputs take \(3,\)"),
        ({"activation": [ReLU(), "relu"]}, "layer 2: the activation is 'relu'"),
    ],
)
def test_from_scipy_with_lists_that_do_not_fit(given: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Network.from_scipy([np.ones((3, 3))] * 2, **given)


def test_dense_and_sparse_layers_in_one_network() -> None:
    mixed = Network((ones(3, 2), Linear(np.ones((2, 4)))))
    assert (mixed.inputs, mixed.outputs, mixed.edges, mixed.widest) == (3, 4, 6 + 8, 4)
    with pytest.raises(UsageError, match="layer 2 is dense"):
        mixed.layers_of(SparseLinear)
    with pytest.raises(UsageError, match="layer 1 is sparse"):
        mixed.layers_of(Linear)
    assert mixed.prefix(1).layers_of(SparseLinear) == mixed.layers[:1]
    dense = Network(mixed.layers[1:])
    assert dense.layers_of(Linear) == mixed.layers[1:]
    biased = mixed.with_bias(0.5)
    assert [type(layer) for layer in biased] == [SparseLinear, Linear]
    assert [layer.bias for layer in biased] == [0.5, 0.5]


def test_runs_are_the_longest_stretches_of_one_kind() -> None:
    sparse, dense = ones(2, 2), Linear(np.ones((2, 2)))
    assert Network((sparse,)).runs() == ((0, 1),)
    assert Network((dense, dense)).runs() == ((0, 2),)
    mixed = Network((sparse, sparse, dense, sparse))
    assert mixed.runs() == ((0, 2), (2, 3), (3, 4))
    assert mixed.layers_of(SparseLinear, 0, 2) == (sparse, sparse)
    assert mixed.layers_of(Linear, 2, 3) == (dense,)
    with pytest.raises(UsageError, match="layer 3 is dense"):
        mixed.layers_of(SparseLinear, 1, 4)
    with pytest.raises(UsageError, match="layer 4 is sparse"):
        mixed.layers_of(Linear, 2)


def lenet(**given: Any) -> Network:
    """Two convolutions with pooling after each, then a sparse layer, a dense one and shares of one."""
    layers = (
        Conv2d(np.ones((4, 1, 3, 3))),
        MaxPool2d(2),
        Conv2d(np.ones((6, 4, 3, 3)), stride=2, padding=1),
        AvgPool2d(2),
        Flatten(),
        ones(54, 10),
        Linear(np.ones((10, 3))),
        Softmax(),
    )
    return Network(layers, **{"image": (1, 28, 28), **given})


def test_shapes_are_followed_through_layers_of_images() -> None:
    network = lenet()
    images = ((1, 28, 28), (4, 26, 26), (4, 13, 13), (6, 7, 7), (6, 3, 3))
    assert network.shapes == (*images, (54,), (10,), (3,), (3,))
    assert network.sizes == (784, 2704, 676, 294, 54, 54, 10, 3, 3)
    assert (network.inputs, network.outputs, network.widest) == (784, 3, 2704)
    assert network.edges == 36 + 216 + 540 + 30
    assert network.multiply_adds == 36 * 26 * 26 + 216 * 49 + 540 + 30
    assert Network((ones(3, 5), ones(5, 2))).shapes == ((3,), (5,), (2,))
    assert Network((ones(3, 5), ones(5, 2))).multiply_adds == 25


@pytest.mark.parametrize("image", [(28, 28), (1, 28, 0), (1, 28, 28, 1), (1, 28, 2.5), "abc", (True, 28, 28), 28])
def test_what_is_no_image_is_refused(image: Any) -> None:
    with pytest.raises(ShapeError, match=r"\(channels, height, width\)"):
        lenet(image=image)


@pytest.mark.parametrize("first", [Conv2d(np.ones((1, 1, 1, 1))), MaxPool2d(2), AvgPool2d(2), Flatten(), Softmax()])
def test_layers_of_images_need_an_image_first(first: Any) -> None:
    with pytest.raises(ShapeError, match=f"layer 1 is {kind_of(first)}"):
        Network((first,))


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ((Conv2d(np.ones((4, 2, 3, 3))),), r"layer 1: the layer takes 2 channels; its input has shape \(1, 1, 8, 8\)"),
        ((MaxPool2d(2), Conv2d(np.ones((4, 1, 5, 5)))), "layer 2: a window of 5 x 5 pixels is larger than an image"),
        (
            (MaxPool2d(2), Linear(np.ones((16, 3)))),
            "layer 2 takes rows of 16 inputs, but layer 1 gives images.*Flatten",
        ),
        ((ones(64, 3),), r"layer 1 takes rows of 64 inputs, but the network is given images of shape \(1, 8, 8\)"),
        ((Flatten(), ones(63, 3)), "layer 2 takes 63 inputs, but layer 1 gives 64"),
        ((Flatten(), MaxPool2d(2)), r"layer 2: the layer takes \(images, channels, height, width\)"),
    ],
)
def test_shapes_that_do_not_fit_name_the_layer(layers: Any, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        Network(layers, image=(1, 8, 8))


def test_any_layer_that_reads_the_input_says_how_wide_it_is() -> None:
    assert Network((Node(Add(), (0, 0)), Linear(np.eye(3)), Node(Linear(np.eye(3)), (0,)))).shapes[0] == (3,)
    with pytest.raises(ShapeError, match="layer 1 is an Add: say what images"):
        Network((Node(Add(), (0, 0)), Flatten(), Linear(np.eye(3))))


@pytest.mark.parametrize(
    "matrix", [sp.csr_matrix((2, 3)), sp.csc_array((2, 3)), np.zeros((2, 3)), "relu", None, ReLU()]
)
def test_what_is_no_layer(matrix: Any) -> None:
    with pytest.raises(InputError, match=rf"layer 2: {kind_of(matrix)} .*Network.from_scipy"):
        Network((ones(2, 2), matrix))
