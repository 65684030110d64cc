"""What lies along which axis: rows are not mixed, and features become images, and images features, as graphs say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason="reads ONNX files")
from onnx import TensorProto, helper
from onnx_graphs import Array, check, model, node, normal

from sparsenn import Conv2d, Flatten, Linear, MaxPool2d, PerPosition, Slice, SparseLinear, from_onnx
from sparsenn.errors import InputError
from sparsenn.io.importers import combinations


def ints(*numbers: int) -> Array:
    return np.array(numbers, np.int64)


def cast(name: str, to: str, kind: int = TensorProto.FLOAT) -> Any:
    return helper.make_node("Cast", [name], [to], to=kind)


# ---- The number of rows ---------------------------------------------------------------------------------------------

SIZE = [node("Shape", "x", to="s"), node("Gather", "s", "zero", to="n")]

COMPUTED: dict[str, tuple[list[Any], dict[str, Array]]] = {
    "cast": ([cast("n", "f")], {}),
    "cast to double": ([cast("n", "f", TensorProto.DOUBLE)], {}),
    "cast and divided": ([cast("n", "a"), node("Div", "one", "a", to="f")], {}),
    "multiplied": ([node("Mul", "n", "two", to="m"), cast("m", "f")], {"two": ints(2)}),
    "range": ([node("Range", "none", "n", "step", to="r"), cast("r", "f")],
              {"none": np.int64(0), "step": np.int64(1)}),
    "zeros": ([node("Reshape", "n", "flat", to="v"), node("ConstantOfShape", "v", to="f")], {"flat": ints(1)}),
    "expanded": ([node("Concat", "n", "four", axis=0, to="v"), node("Expand", "one", "v", to="f")],
                 {"four": ints(4), "flat": ints(1)}),
    "gathered by": ([node("Gather", "table", "n", to="f")], {"table": normal(9)}),
    "sliced to": ([node("Slice", "table", "none", "n", to="f")], {"table": normal(9), "none": ints(0)}),
    "as it is": ([node("Identity", "n", to="f")], {}),
}  # fmt: skip


@pytest.mark.parametrize("case", COMPUTED)
@pytest.mark.parametrize("operator", ["Add", "Mul", "Div"])
def test_numbers_computed_from_the_number_of_rows_are_refused(case: str, operator: str) -> None:
    nodes, constants = COMPUTED[case]
    proto = model(
        [*SIZE, *nodes, node("Relu", "x", to="r"), node(operator, "r", "f")],
        ["n", 4],
        zero=ints(0),
        one=np.float32(1),
        **constants,
    )
    with pytest.raises(InputError, match="the number of rows, which is not known"):
        from_onnx(proto)


@pytest.mark.parametrize("kind", [TensorProto.INT32, TensorProto.INT64])
def test_the_number_of_rows_may_be_cast_to_integers_in_a_shape(kind: int) -> None:
    nodes = [
        node("Shape", "x", to="s"),
        cast("s", "t", kind),
        node("Slice", "t", "zero", "one", to="n"),
        node("Concat", "n", "rest", axis=0, to="u"),
        cast("u", "v", TensorProto.INT64),
        node("Reshape", "x", "v", to="w"),
        node("MatMul", "w", "W"),
    ]
    rest = np.array([6], np.int32 if kind == TensorProto.INT32 else np.int64)
    check(model(nodes, ["n", 2, 3], zero=ints(0), one=ints(1), rest=rest, W=normal(6, 5)), normal(4, 2, 3))


# ---- Rows along another axis ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("layers", [[], [node("Relu", "x", to="z")]])
@pytest.mark.parametrize("operator", ["Add", "Sub", "Sum", "Concat"])
def test_rows_are_not_joined_with_features(operator: str, layers: list[Any]) -> None:
    first = "z" if layers else "x"
    axis = {"axis": 1} if operator == "Concat" else {}
    nodes = [*layers, node("Transpose", first, to="t", perm=[1, 0]), node(operator, first, "t", **axis)]
    with pytest.raises(InputError, match="whose rows lie along other axes"):
        from_onnx(model(nodes, ["n" if operator == "Concat" else 2, 2]))


def test_weights_of_more_axes_add_axes() -> None:
    softmax = [node("MatMul", "x", "W", to="a"), node("Softmax", "a", axis=1)]
    with pytest.raises(InputError, match=r"node 2 \(Softmax\): it takes a tensor of shape \(1, rows, 3\)"):
        from_onnx(model(softmax, ["n", 5], W=normal(1, 5, 3)))
    check(model([node("MatMul", "W", "x")], [5], W=normal(1, 3, 5)), normal(5), axis=None)
    check(model([node("MatMul", "x", "W")], [5], W=normal(1, 1, 5, 3)), normal(5), axis=None)
    check(model([node("MatMul", "x", "W")], ["n", 1, 5], W=normal(1, 5, 3)), normal(4, 1, 5))


def test_weights_along_one_of_several_axes() -> None:
    check(model([node("MatMul", "x", "W")], ["n", 2, 5], W=normal(5, 3)), normal(4, 2, 5))
    check(model([node("MatMul", "W", "x")], ["n", 2, 5], W=normal(3, 2)), normal(4, 2, 5))
    check(model([node("MatMul", "x", "w")], ["n", 2, 5], w=normal(5)), normal(4, 2, 5))
    sparse = normal(40, 3) * (np.arange(120).reshape(40, 3) % 7 == 0)
    network = check(model([node("MatMul", "x", "W")], ["n", 3, 40], W=sparse), normal(4, 3, 40))
    assert isinstance(network[0], PerPosition)
    assert network.edges == np.count_nonzero(sparse)


@pytest.mark.parametrize("most", [0, 1 << 18])
@pytest.mark.parametrize("scaled", [normal(5), normal(3, 1), normal(3, 5)])
def test_scalings_before_and_after_weights_along_the_last_axis(
    scaled: Array, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scalings that are the same at all positions become part of the layer that these share."""
    monkeypatch.setattr(combinations, "_MOST_COPIES", most)
    before = [node("Mul", "x", "s", to="m"), node("MatMul", "m", "W")]
    network = check(model(before, ["n", 3, 5], W=normal(5, 4), s=scaled), normal(2, 3, 5))
    assert (len(network) == 1) == (scaled.shape == (5,) or most > 0)
    after = [node("MatMul", "x", "W", to="m"), node("Add", "m", "s", to="a"), node("Relu", "a")]
    network = check(model(after, ["n", 3, 4], W=normal(4, 5), s=scaled), normal(2, 3, 4))
    assert isinstance(network[0], PerPosition)
    assert (len(network) == 1) == (scaled.shape == (5,))


def test_a_matrix_that_a_graph_mixes_is_one_row() -> None:
    nodes = [node("MatMul", "x", "W", to="a"), node("MatMul", "A", "a", to="b"), node("Relu", "b")]
    network = check(model(nodes, [6, 4], W=normal(4, 3), A=normal(6, 6)), normal(6, 4), axis=None)
    assert (network.inputs, network.outputs) == (24, 18)


def test_what_is_neither_rows_nor_one_row_is_refused_as_both() -> None:
    nodes = [node("MatMul", "A", "x", to="a"), node("Softmax", "a", axis=1)]
    with pytest.raises(InputError, match=r"length 6, .*node 2 \(Softmax\)"):
        from_onnx(model(nodes, [6, 4], A=normal(6, 6)))


def test_gemm_takes_matrices_alone() -> None:
    with pytest.raises(InputError, match="of 3 and 2 axes"):
        from_onnx(model([node("Gemm", "x", "W")], ["n", 1, 5], W=normal(5, 3)))


# ---- Images and features --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [["n", 3, 4, 4], ["n", 3, 4]])
@pytest.mark.parametrize("operator", ["Concat", "Add"])
def test_input_images_are_joined_before_any_layer(operator: str, size: list[Any]) -> None:
    joined = node(operator, "x", "x", to="t", **({"axis": 1} if operator == "Concat" else {}))
    x = normal(2, *size[1:])
    pool = node("MaxPool", "t", kernel_shape=[2] * (len(size) - 2))
    for last in (pool, node("Identity", "t"), node("Relu", "t"), node("Flatten", "t")):
        network = check(model([joined, last], size), x)
        assert network.inputs == x[0].size
    filters = normal(5, 6 if operator == "Concat" else 3, *[2] * (len(size) - 2))
    check(model([joined, node("Conv", "t", "F")], size, F=filters), x)


def test_inputs_of_other_axes_are_joined_before_any_layer() -> None:
    check(model([node("Concat", "x", "x", axis=1)], ["n", 2, 3, 2, 2]), normal(2, 2, 3, 2, 2))
    check(model([node("Add", "x", "x")], ["n", 2, 3, 2, 2]), normal(2, 2, 3, 2, 2))


ROWS_TO_IMAGES = {
    "one channel": [node("Unsqueeze", "x", "one", to="u")],
    "one line": [node("Unsqueeze", "x", "one", to="v"), node("Unsqueeze", "v", "one", to="u")],
    "scaled": [node("Sub", "x", "m", to="z"), node("Unsqueeze", "z", "one", to="u")],
    "after a layer": [node("Gemm", "x", "V", "m", to="z"), node("Unsqueeze", "z", "one", to="u")],
    "several channels": [node("Gemm", "x", "V", to="z"), node("Relu", "z", to="r"), node("Reshape", "r", "to", to="u")],
    "sequences": [node("Reshape", "x", "sequence", to="z"), node("Transpose", "z", to="u", perm=[0, 2, 1])],
}


@pytest.mark.parametrize("case", ROWS_TO_IMAGES)
@pytest.mark.parametrize("last", ["Relu", "Conv"])
def test_convolutions_of_rows_of_features(case: str, last: str) -> None:
    channels = {"several channels": 2, "sequences": 2}.get(case, 1)
    axes = 2 if case == "one line" else 1
    attributes: dict[str, Any] = {"pads": [2, 1], "strides": [2], "dilations": [2]} if axes == 1 else {}
    nodes = [
        *ROWS_TO_IMAGES[case],
        node("Conv", "u", "F", "b", to="c", **attributes),
        node(last, "c", *(["G"] if last == "Conv" else []), to="d"),
        node("Flatten", "d", to="e"),
    ]
    constants: dict[str, Array] = {
        "F": normal(4, channels, *[1] * (axes - 1), 3),
        "G": normal(2, 4, *[1] * axes),
        "b": normal(4),
        "m": normal(8),
        "V": normal(8, 8),
        "one": ints(1),
        "to": ints(-1, 2, 4),
        "sequence": ints(0, 4, 2),
    }
    check(model(nodes, ["n", 8], outputs=("e",), **constants), normal(3, 8))


def test_grouped_convolutions_of_rows_of_features() -> None:
    nodes = [node("Reshape", "x", "s", to="u"), node("Mul", "u", "m", to="v"), node("Conv", "v", "F", group=2)]
    numbers = {"s": ints(-1, 4, 3, 3), "m": normal(4, 3, 3), "F": normal(6, 2, 2, 2)}
    network = check(model(nodes, ["n", 36], **numbers), normal(3, 36))
    assert [type(layer) for layer in network if isinstance(layer, Linear | SparseLinear | Conv2d)] == [SparseLinear]


def test_large_images_of_rows_of_features() -> None:
    nodes, weights = [node("Mul", "x", "m", to="v"), node("Conv", "v", "F")], {"F": normal(64, 3, 3, 3)}
    made = check(model(nodes, ["n", 3, 90, 90], m=normal(3, 90, 90), **weights), normal(1, 3, 90, 90))
    assert [type(layer) for layer in made] == [Flatten, SparseLinear, Slice, Conv2d]
    nodes = [node("Transpose", "x", to="a", perm=[0, 3, 1, 2]), node("Conv", "a", "F")]
    made = check(model(nodes, ["n", 90, 90, 3], **weights), normal(1, 90, 90, 3))
    assert [type(layer) for layer in made] == [SparseLinear, Slice, Conv2d]


def test_images_with_channels_last_between_layers() -> None:
    """As TensorFlow's exporters write them: each convolution between two transpositions."""
    first, last = {"perm": [0, 3, 1, 2]}, {"perm": [0, 2, 3, 1]}
    nodes = [
        *(node("Conv", "x", "F", to="a"), node("Transpose", "a", to="b", **last), node("Add", "b", "bias", to="c")),
        *(node("Relu", "c", to="d"), node("Concat", "d", "b", to="e", axis=-1)),
        *(node("Slice", "e", "one", "far", "axis", to="f"), node("Transpose", "f", to="g", **first)),
        *(node("Conv", "g", "G", to="h"), node("Transpose", "h", to="i", **last)),
        *(node("ReduceMean", "i", to="j", axes=[1, 2]), node("Transpose", "j", to="k", **first)),
        node("Conv", "k", "H"),
    ]
    constants = {"one": ints(1, 1), "far": ints(9, 9), "axis": ints(1, 3), "bias": normal(4)}
    weights = {"F": normal(4, 3, 2, 2), "G": normal(5, 7, 3, 3), "H": normal(2, 5, 1, 1)}
    network = check(model(nodes, ["n", 3, 8, 7], **constants, **weights), normal(2, 3, 8, 7))
    assert not any(isinstance(layer, Linear | SparseLinear) for layer in network)


def test_shuffled_channels() -> None:
    nodes = [
        node("Conv", "x", "F", to="a"),
        node("Relu", "a", to="b"),
        node("Reshape", "b", "apart", to="c"),
        node("Transpose", "c", to="d", perm=[0, 2, 1, 3, 4]),
        node("Reshape", "d", "together", to="e"),
        node("Conv", "e", "G", group=2),
    ]
    shapes = {"apart": ints(-1, 2, 4, 3, 4), "together": ints(-1, 8, 3, 4)}
    network = check(
        model(nodes, ["n", 3, 4, 5], F=normal(8, 3, 2, 2), G=normal(4, 4, 1, 1), **shapes), normal(2, 3, 4, 5)
    )
    assert sum(isinstance(layer, Conv2d) for layer in network) == 3


def test_the_unit_of_shufflenet() -> None:
    split = helper.make_node("Split", ["a"], ["b", "c"], axis=1)
    nodes = [
        *(node("Relu", "x", to="a"), split, node("Conv", "c", "F", to="d"), node("Concat", "b", "d", to="e", axis=1)),
        *(node("Reshape", "e", "apart", to="f"), node("Transpose", "f", to="g", perm=[0, 2, 1, 3, 4])),
        *(node("Reshape", "g", "together", to="h"), helper.make_node("Split", ["h"], ["i", "j"], axis=1)),
        *(node("Conv", "j", "G", to="k"), node("Concat", "i", "k", to="l", axis=1)),
        node("GlobalAveragePool", "l"),
    ]
    constants = {"apart": ints(-1, 2, 3, 4, 5), "together": ints(-1, 6, 4, 5)}
    weights = {"F": normal(3, 3, 1, 1), "G": normal(3, 3, 1, 1)}
    network = check(model(nodes, ["n", 6, 4, 5], **constants, **weights), normal(2, 6, 4, 5))
    assert not any(isinstance(layer, Linear | SparseLinear) for layer in network)


@pytest.mark.parametrize(
    ("nodes", "kinds"),
    [
        ([node("Slice", "a", "s", "e", "hw", to="b")], [Slice, Slice]),
        ([node("Slice", "a", "s", "far", "hw", "two", to="b")], [Slice, MaxPool2d, MaxPool2d]),
        ([node("Gather", "a", "p", to="b", axis=1)], []),
        ([node("Gather", "a", "q", to="b", axis=1)], [Slice]),
        ([node("Gather", "a", "p", to="b", axis=2)], None),
    ],
)
def test_numbers_of_images_at_constant_places(nodes: list[Any], kinds: list[type] | None) -> None:
    nodes = [node("Conv", "x", "F", to="y0"), node("Relu", "y0", to="a"), *nodes, node("Conv", "b", "G")]
    places = {"s": ints(1, 0), "e": ints(5, -1), "far": ints(9, 9), "hw": ints(2, 3), "two": ints(2, 2)}
    channels = 2 if any("q" in each.input for each in nodes) else 4 if any("p" in each.input for each in nodes) else 3
    channels = 3 if kinds is None else channels
    places |= {"p": ints(2, 0, 1, -1), "q": ints(1, 2), "F": normal(3, 2, 1, 1), "G": normal(2, channels, 1, 1)}
    network = check(model(nodes, ["n", 2, 6, 7], **places), normal(2, 2, 6, 7))
    if kinds is not None:
        assert [type(layer) for layer in network] == [Conv2d, *kinds, Conv2d]


@pytest.mark.parametrize("pool", ["MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"])
@pytest.mark.parametrize("after", ["BatchNormalization", "Relu", "Clip", "Mul", "Add", "Conv"])
def test_a_pool_that_comes_first_in_a_concatenation(pool: str, after: str) -> None:
    whole = pool.startswith("Global")
    attributes: dict[str, Any] = {} if whole else {"kernel_shape": [2, 2], "strides": [2, 2]}
    other = {"strides": [6, 6], "kernel_shape": [1, 1]} if whole else {"strides": [2, 2], "kernel_shape": [1, 1]}
    numbers = {name: normal(5) for name in ("s", "b", "m")} | {"v": np.abs(normal(5)) + 1, "c": normal(5, 1, 1)}
    taken = {"BatchNormalization": ["s", "b", "m", "v"], "Clip": ["low"], "Mul": ["c"], "Add": ["c"], "Conv": ["G"]}
    nodes = [
        node(pool, "x", to="p", **attributes),
        node("Conv", "x", "F", to="f", **other),
        node("Concat", "p", "f", to="k", axis=1),
        node(after, "k", *taken.get(after, [])),
    ]
    constants = {**numbers, "F": normal(3, 2, 1, 1), "G": normal(4, 5, 1, 1), "low": np.float32(-0.5)}
    check(model(nodes, ["n", 2, 6, 6], **constants), normal(3, 2, 6, 6))


def test_heads_of_a_detector_are_joined() -> None:
    nodes, heads = [node("Conv", "x", "F", to="a"), node("Conv", "a", "G", to="b", strides=[2, 2])], []
    for name in "ab":
        nodes.append(node("Transpose", name, to=f"{name}1", perm=[0, 2, 3, 1]))
        nodes.append(node("Reshape", f"{name}1", "anchors", to=f"{name}2"))
        heads.append(f"{name}2")
    proto = model(
        [*nodes, node("Concat", *heads, axis=1)],
        ["n", 3, 6, 6],
        F=normal(8, 3, 2, 2),
        G=normal(4, 8, 2, 2),
        anchors=ints(0, -1, 4),
    )
    check(proto, normal(2, 3, 6, 6))


# ---- Selections -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", ["input", "product", "activation", "images"])
@pytest.mark.parametrize("operator", ["Gather", "Slice", "ArrayFeatureExtractor"])
def test_columns_that_constants_pick(before: str, operator: str) -> None:
    first = {
        "input": [node("Mul", "x", "m", to="a")],
        "product": [node("Gemm", "x", "V", "m", to="a")],
        "activation": [node("Relu", "x", to="a")],
        "images": [node("Reshape", "x", "s", to="r"), node("Conv", "r", "F", to="c"), node("Flatten", "c", to="a")],
    }[before]
    ml = operator == "ArrayFeatureExtractor"
    inputs = ["starts", "ends", "one", "steps"] if operator == "Slice" else ["picked"]
    attributes = {"axis": 1} if operator == "Gather" else {}
    picked = node(operator, "a", *inputs, to="b", domain="ai.onnx.ml" if ml else "", **attributes)
    numbers = {"starts": ints(-1), "ends": ints(1), "one": ints(1), "steps": ints(-2), "picked": ints(7, 0, 3, 3)}
    constants = {"m": normal(8), "V": normal(8, 8), "s": ints(-1, 2, 2, 2), "F": normal(2, 2, 1, 1)}
    constants["W"] = normal(3 if operator == "Slice" else 4, 3)
    nodes = [*first, picked, node("Sub", "b", "h", to="c1"), node("MatMul", "c1", "W")]
    check(model(nodes, ["n", 8], ml=ml, h=np.float32(0.5), **numbers, **constants), normal(4, 8))


def test_channels_and_pixels_that_constants_pick() -> None:
    nodes = [
        node("Conv", "x", "F", to="a"),
        node("Gather", "a", "p", axis=1, to="b"),
        node("Slice", "b", "s", "e", "k"),
    ]
    numbers = {"F": normal(4, 2, 2, 2), "p": ints(-1, 0), "s": ints(1, 0), "e": ints(9, 2), "k": ints(3, 2)}
    check(model(nodes, ["n", 2, 5, 4], **numbers), normal(3, 2, 5, 4))
    check(model([node("Gather", "x", "p", axis=2)], ["n", 2, 5], p=np.int64(3)), normal(3, 2, 5))
    check(model([node("Gather", "x", "p", axis=0)], [5, "n"], p=ints(3, 1)), normal(5, 4), axis=1)
    check(model([node("Slice", "x", "s", "e")], ["n", 5], s=ints(0, 1), e=ints(2**31 - 1, 3)), normal(4, 5))


@pytest.mark.parametrize(
    ("nodes", "why"),
    [
        ([node("Gather", "x", "p", axis=0)], "picks rows of it; .* leave the selection out"),
        ([node("Slice", "x", "p", "q", "zero")], "picks rows of it"),
        ([node("Gather", "x", "far", axis=1)], "picks positions along axis 1 that are not there"),
        ([node("Gather", "x", "p", axis=2)], "which has no axis 2"),
        (
            [cast("x", "i", TensorProto.INT64), node("Gather", "table", "i")],
            "picks elements of a constant by what the network",
        ),
    ],
)
def test_other_selections_are_refused(nodes: list[Any], why: str) -> None:
    constants = {"p": ints(0), "q": ints(2), "zero": ints(0), "far": ints(9), "table": normal(9)}
    with pytest.raises(InputError, match=why):
        from_onnx(model(nodes, ["n", 5], dtype=np.int64 if nodes[0].op_type == "Cast" else np.float32, **constants))


@pytest.mark.parametrize(("operator", "bound"), [("Max", 0.0), ("Min", 1.0)])
def test_bounds_of_more_axes_give_these_to_results(operator: str, bound: float) -> None:
    nodes = [node(operator, "x", "bound", to="z"), node("Squeeze", "z", "axes")]
    made = model(nodes, ["n", 4], bound=np.full((1, 1, 1), bound, np.float32), axes=ints(0))
    check(made, normal(3, 4))


def test_constants_of_more_axes_make_no_activation() -> None:
    nodes = [node("Mul", "x", "one", to="a"), node("Sigmoid", "a", to="s"), node("Mul", "x", "s")]
    with pytest.raises(InputError, match="whose rows lie along other axes"):
        from_onnx(model(nodes, ["n", 4], one=np.ones((1, 1, 1), np.float32)))
