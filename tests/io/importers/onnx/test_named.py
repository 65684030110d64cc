"""Graphs with several inputs and outputs, and channels of images: what becomes of them, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx_graphs import chain, check, ints, model, node, normal

from sparsenn import Concatenate, Conv2d, Linear, Model, Network, Node, Session, Slice, from_onnx, to_onnx
from sparsenn.errors import InputError, UsageError
from sparsenn.formats import Scaling
from sparsenn.io import read_model

SIZES = {"a": ["n", 4], "b": ["n", 2, 3, 3]}


def proto(nodes: Any, outputs: Any = ("y", "z"), sizes: Any = SIZES, **constants: Any) -> Any:
    return model(nodes, sizes, 17, outputs, **constants)


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-5)


def types(network: Network) -> list[type]:
    return [type(layer) for layer in network]


def test_channels_of_images_are_slices() -> None:
    """As in ShuffleNet: a half of the channels goes through a convolution, the other half past it."""
    split = node("Split", "u", "sizes", to="v", axis=1)
    split.output.append("w")
    nodes = [*chain("Conv K", "Relu", to="u"), split, *chain("Conv L", ("Concat w _", {"axis": 1}), x="v")]
    graph = model(nodes, ["n", 2, 5, 5], K=normal(4, 2, 3, 3), L=normal(2, 2, 1, 1), sizes=np.array([2, 2]))
    network = check(graph, normal(3, 2, 5, 5))
    assert [(layer.first, layer.last) for layer in network if isinstance(layer, Slice)] == [(2, 4), (0, 2)]
    assert network.shapes[-1] == (4, 3, 3)


@pytest.mark.parametrize("places", [[0], [1, 2], [-1, 0], [-2, -1], [2, 1], [0, 0], [0, 1, 2]])
def test_any_channels_may_be_picked(places: list[int]) -> None:
    check(model(chain(("Gather i", {"axis": 1}), "Relu"), ["n", 3, 2, 2], i=ints(*places)), normal(4, 3, 2, 2))


def test_names_come_from_the_graph_and_go_into_a_file(tmp_path: Any) -> None:
    nodes = [
        *chain("Conv K", "Flatten", ("Concat a _", {"axis": 1}), x="b", to="h"),
        node("MatMul", "h", "W", to="y"),
        *chain("MatMul V", "Reshape s", x="h", to="z"),
    ]
    constants = {"K": normal(1, 2, 2, 2), "W": normal(8, 3), "V": normal(8, 4), "s": np.array([-1, 2, 2])}
    network = from_onnx(proto(nodes, **constants))
    assert (network.named_inputs, network.named_outputs) == ({"a": (4,), "b": (2, 3, 3)}, {"y": (3,), "z": (2, 2)})
    to_onnx(network, tmp_path / "again.onnx")
    again = read_model(tmp_path / "again.onnx")
    assert not again.classes
    assert types(again.network) == types(network)
    inputs = {"a": normal(5, 4), "b": normal(5, 2, 3, 3)}
    assert_same(Session(again.network, device="cpu")(inputs), Session(network, device="cpu")(inputs))


def test_heads_of_the_same_layer_are_one_product() -> None:
    nodes = [node("Relu", "a", to="h"), node("Gemm", "h", "W", to="y"), node("Gemm", "h", "V", to="z")]
    network = from_onnx(proto(nodes, W=normal(4, 3), V=normal(4, 1)))
    assert network.shapes[-2:] == ((4,), (4,))
    assert types(network)[-1] is Linear
    assert network.named_inputs is None
    assert network.named_outputs == {"y": (3,), "z": (1,)}


@pytest.mark.parametrize("scaled", [False, True])
def test_rows_that_are_read_whole_are_put_together_in_files(tmp_path: Any, scaled: bool) -> None:
    nodes = (Linear(normal(6, 5)), Node(Slice(1, 5), (0,)), Node(Slice(4, 6), (0,)), Node(Concatenate(), (1, 2, 3)))
    network = Network(nodes, named_inputs={"a": (4,), "b": (2, 1)}, named_outputs={"y": (3, 2), "z": (5,)})
    scaling = Scaling(np.array([2.0]), np.array([1.0]), np.array([0.5])) if scaled else None
    path = tmp_path / "network.onnx"
    to_onnx(Model(network, "mse", False, scaling=scaling) if scaled else network, path)
    inputs = {"a": normal(5, 4), "b": normal(5, 2, 1)}
    rows = {name: (array * 2 - 1) / 0.5 for name, array in inputs.items()} if scaled else inputs
    expected = Session(network, device="cpu")(rows)
    found = Session(from_onnx(path), device="cpu")(inputs)
    assert {name: array.shape for name, array in found.items()} == {"y": (5, 3, 2), "z": (5, 5)}
    assert_same(found, expected)


def test_outputs_that_split_images_are_reshaped_under_names_of_their_own(tmp_path: Any) -> None:
    layers = (Conv2d(normal(3, 2, 2, 2)),)
    network = Network(layers, (2, 3, 3), named_outputs={"y": (4, 1), "z": (2, 2, 2)})
    to_onnx(network, tmp_path / "network.onnx")
    rows = normal(5, 18)
    expected, found = (Session(each, device="cpu")(rows) for each in (network, from_onnx(tmp_path / "network.onnx")))
    assert_same(found, expected)


def test_an_output_may_be_an_input_as_it_is(tmp_path: Any) -> None:
    network = from_onnx(proto([node("Relu", "a")], ("y", "b"), {"a": ["n", 4], "b": ["n", 3]}))
    to_onnx(network, tmp_path / "network.onnx")
    inputs = {"a": normal(5, 4), "b": normal(5, 3)}
    found = Session(from_onnx(tmp_path / "network.onnx"), device="cpu")(inputs)
    np.testing.assert_array_equal(found["b"], inputs["b"])
    np.testing.assert_array_equal(found["y"], np.maximum(inputs["a"], 0))


@pytest.mark.parametrize("outputs", [("y", "z"), ("z", "y")])
def test_an_image_beside_what_is_made_of_its_pixels(outputs: tuple[str, str]) -> None:
    nodes = [node("Conv", "b", "K", to="y"), *chain("Flatten", "Neg", x="b", to="z")]
    images, kernel = normal(5, 2, 3, 3), normal(4, 2, 1, 1)
    network = from_onnx(proto(nodes, outputs, {"b": ["n", 2, 3, 3]}, K=kernel))
    convolved = np.einsum("fc,nchw->nfhw", kernel[:, :, 0, 0], images)
    assert_same(Session(network, device="cpu")(images), {"y": convolved, "z": -images.reshape(5, -1)})


def test_pixels_of_an_image_are_concatenated_with_features_of_it() -> None:
    nodes = [*chain("Flatten", "Sub half", to="p"), *chain("Conv K", "Flatten", ("Concat p _", {"axis": 1}), "Gemm W")]
    constants = {"K": normal(4, 2, 2, 2), "W": normal(34, 3), "half": np.float32(0.5)}
    check(model(nodes, ["n", 2, 3, 3], **constants), normal(5, 2, 3, 3))


def test_one_value_may_be_several_outputs() -> None:
    network = from_onnx(proto([node("Relu", "a"), node("Identity", "y", to="z")], sizes={"a": ["n", 4]}))
    rows = normal(5, 4)
    for array in Session(network, device="cpu")(rows).values():
        np.testing.assert_array_equal(array, np.maximum(rows, 0))
    assert network.named_outputs == {"y": (4,), "z": (4,)}


def test_a_name_of_an_input_and_of_another_output_is_refused(tmp_path: Any) -> None:
    network = Network((Linear(normal(4, 3)),), named_inputs={"a": (4,)}, named_outputs={"a": (3,)})
    with pytest.raises(UsageError, match="'a' names an input and another output"):
        to_onnx(network, tmp_path / "network.onnx")


JOINED = chain("Flatten", ("Concat a _", {"axis": 1}), x="b")


@pytest.mark.parametrize(
    ("nodes", "outputs", "sizes", "words"),
    [
        (JOINED, ("y",), {"a": ["n", 4], "b": [1, 2, 3, 3]}, "differ in their rows"),
        (JOINED, ("y",), {"a": [2, 4], "b": [3, 2, 3, 3]}, "differ in more than features or channels"),
        (
            [node("ArgMax", "a", axis=1), node("Relu", "a", to="z"), node("Tanh", "a", to="w")],
            "yzw",
            SIZES,
            "number of a",
        ),
        ([node("Mul", "a", "b")], ("y",), SIZES, "it multiplies 4 and 2"),
        ([node("Split", "a", to="y", axis=0)], ("y",), SIZES, "picks rows"),
    ],
)
def test_what_is_refused(nodes: Any, outputs: Any, sizes: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        from_onnx(proto(nodes, outputs, sizes))
