"""What lies along which axis: rows are not mixed, and features become images, and images features, as graphs say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper
from onnx_graphs import Array, cast, chain, check, ints, model, node, normal

from sparsenn import Conv2d, Flatten, Linear, MaxPool2d, PerPosition, Slice, SparseLinear, from_onnx
from sparsenn.errors import InputError
from sparsenn.io.importers import combinations

# ---- The number of rows ---------------------------------------------------------------------------------------------

COMPUTED: dict[str, tuple[list[Any], dict[str, Array]]] = {
    "cast": ([cast(np.float32)], {}),
    "cast to double": ([cast(np.float64)], {}),
    "cast and divided": ([cast(np.float32), "Div one _"], {}),
    "multiplied": (["Mul two", cast(np.float32)], {"two": ints(2)}),
    "range": (["Range none _ step", cast(np.float32)], {"none": np.int64(0), "step": np.int64(1)}),
    "zeros": (["Reshape flat", "ConstantOfShape"], {"flat": ints(1)}),
    "expanded": ([("Concat _ four", {"axis": 0}), "Expand one _"], {"four": ints(4), "flat": ints(1)}),
    "gathered by": (["Gather table _"], {"table": normal(9)}),
    "sliced to": (["Slice table none _"], {"table": normal(9), "none": ints(0)}),
    "as it is": (["Identity"], {}),
}


@pytest.mark.parametrize("case", COMPUTED)
@pytest.mark.parametrize("operator", ["Add", "Mul", "Div"])
def test_numbers_computed_from_the_number_of_rows_are_refused(case: str, operator: str) -> None:
    steps, constants = COMPUTED[case]
    nodes = [*chain("Shape", "Gather zero", *steps, to="f"), *chain("Relu", f"{operator} f")]
    with pytest.raises(InputError, match="the number of rows, which is not known"):
        from_onnx(model(nodes, ["n", 4], zero=ints(0), one=np.float32(1), **constants))


@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_the_number_of_rows_may_be_cast_to_integers_in_a_shape(kind: type) -> None:
    size = ("Shape", cast(kind), "Slice zero one", ("Concat _ rest", {"axis": 0}), cast(np.int64))
    numbers = {"zero": ints(0), "one": ints(1), "rest": np.array([6], kind), "W": normal(6, 5)}
    check(model(chain(*size, "Reshape x _", "MatMul W"), ["n", 2, 3], **numbers), normal(4, 2, 3))


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
    softmax = chain("MatMul W", ("Softmax", {"axis": 1}))
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
    before = chain("Mul s", "MatMul W")
    network = check(model(before, ["n", 3, 5], W=normal(5, 4), s=scaled), normal(2, 3, 5))
    assert (len(network) == 1) == (scaled.shape == (5,) or most > 0)
    after = chain("MatMul W", "Add s", "Relu")
    network = check(model(after, ["n", 3, 4], W=normal(4, 5), s=scaled), normal(2, 3, 4))
    assert isinstance(network[0], PerPosition)
    assert (len(network) == 1) == (scaled.shape == (5,))


def test_a_matrix_that_a_graph_mixes_is_one_row() -> None:
    nodes = chain("MatMul W", "MatMul A _", "Relu")
    network = check(model(nodes, [6, 4], W=normal(4, 3), A=normal(6, 6)), normal(6, 4), axis=None)
    assert (network.inputs, network.outputs) == (24, 18)


def test_what_is_neither_rows_nor_one_row_is_refused_as_both() -> None:
    nodes = chain("MatMul A _", ("Softmax", {"axis": 1}))
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
    "one channel": ["Unsqueeze one"],
    "one line": ["Unsqueeze one", "Unsqueeze one"],
    "scaled": ["Sub m", "Unsqueeze one"],
    "after a layer": ["Gemm V m", "Unsqueeze one"],
    "several channels": ["Gemm V", "Relu", "Reshape to"],
    "sequences": ["Reshape sequence", ("Transpose", {"perm": [0, 2, 1]})],
}


@pytest.mark.parametrize("case", ROWS_TO_IMAGES)
@pytest.mark.parametrize("last", ["Relu", "Conv G"])
def test_convolutions_of_rows_of_features(case: str, last: str) -> None:
    channels = {"several channels": 2, "sequences": 2}.get(case, 1)
    axes = 2 if case == "one line" else 1
    attributes: dict[str, Any] = {"pads": [2, 1], "strides": [2], "dilations": [2]} if axes == 1 else {}
    nodes = chain(*ROWS_TO_IMAGES[case], ("Conv F b", attributes), last, "Flatten")
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
    check(model(nodes, ["n", 8], **constants), normal(3, 8))


def test_grouped_convolutions_of_rows_of_features() -> None:
    nodes = chain("Reshape s", "Mul m", ("Conv F", {"group": 2}))
    numbers = {"s": ints(-1, 4, 3, 3), "m": normal(4, 3, 3), "F": normal(6, 2, 2, 2)}
    network = check(model(nodes, ["n", 36], **numbers), normal(3, 36))
    assert [type(layer) for layer in network if isinstance(layer, Linear | SparseLinear | Conv2d)] == [SparseLinear]


def test_large_images_of_rows_of_features() -> None:
    weights = {"F": normal(64, 3, 3, 3)}
    made = check(
        model(chain("Mul m", "Conv F"), ["n", 3, 90, 90], m=normal(3, 90, 90), **weights), normal(1, 3, 90, 90)
    )
    assert [type(layer) for layer in made] == [Flatten, SparseLinear, Slice, Conv2d]
    made = check(
        model(chain(("Transpose", {"perm": [0, 3, 1, 2]}), "Conv F"), ["n", 90, 90, 3], **weights), normal(1, 90, 90, 3)
    )
    assert [type(layer) for layer in made] == [SparseLinear, Slice, Conv2d]


def test_images_with_channels_last_between_layers() -> None:
    """As TensorFlow's exporters write them: each convolution between two transpositions."""
    first, last = ("Transpose", {"perm": [0, 3, 1, 2]}), ("Transpose", {"perm": [0, 2, 3, 1]})
    joined = ("Add bias", "Relu", ("Concat _ b", {"axis": -1}), "Slice one far axis", first)
    ending = ("Conv G", last, ("ReduceMean", {"axes": [1, 2]}), first, "Conv H")
    nodes = [*chain("Conv F", last, to="b"), *chain(*joined, *ending, x="b")]
    constants = {"one": ints(1, 1), "far": ints(9, 9), "axis": ints(1, 3), "bias": normal(4)}
    weights = {"F": normal(4, 3, 2, 2), "G": normal(5, 7, 3, 3), "H": normal(2, 5, 1, 1)}
    network = check(model(nodes, ["n", 3, 8, 7], **constants, **weights), normal(2, 3, 8, 7))
    assert not any(isinstance(layer, Linear | SparseLinear) for layer in network)


SHUFFLED = ("Reshape apart", ("Transpose", {"perm": [0, 2, 1, 3, 4]}), "Reshape together")


def test_shuffled_channels() -> None:
    nodes = chain("Conv F", "Relu", *SHUFFLED, ("Conv G", {"group": 2}))
    shapes = {"apart": ints(-1, 2, 4, 3, 4), "together": ints(-1, 8, 3, 4)}
    network = check(
        model(nodes, ["n", 3, 4, 5], F=normal(8, 3, 2, 2), G=normal(4, 4, 1, 1), **shapes), normal(2, 3, 4, 5)
    )
    assert sum(isinstance(layer, Conv2d) for layer in network) == 3


def test_the_unit_of_shufflenet() -> None:
    split = helper.make_node("Split", ["a"], ["b", "c"], axis=1)
    nodes = [
        *(node("Relu", "x", to="a"), split, *chain("Conv F", ("Concat b _", {"axis": 1}), *SHUFFLED, x="c", to="h")),
        helper.make_node("Split", ["h"], ["i", "j"], axis=1),
        *chain("Conv G", ("Concat i _", {"axis": 1}), "GlobalAveragePool", x="j"),
    ]
    constants = {"apart": ints(-1, 2, 3, 4, 5), "together": ints(-1, 6, 4, 5)}
    weights = {"F": normal(3, 3, 1, 1), "G": normal(3, 3, 1, 1)}
    network = check(model(nodes, ["n", 6, 4, 5], **constants, **weights), normal(2, 6, 4, 5))
    assert not any(isinstance(layer, Linear | SparseLinear) for layer in network)


@pytest.mark.parametrize(
    ("step", "channels", "kinds"),
    [
        ("Slice s e hw", 3, [Slice, Slice]),
        ("Slice s far hw two", 3, [Slice, MaxPool2d, MaxPool2d]),
        (("Gather p", {"axis": 1}), 4, []),
        (("Gather q", {"axis": 1}), 2, [Slice]),
        (("Gather p", {"axis": 2}), 3, None),
    ],
)
def test_numbers_of_images_at_constant_places(step: Any, channels: int, kinds: list[type] | None) -> None:
    nodes = chain("Conv F", "Relu", step, "Conv G")
    places = {"s": ints(1, 0), "e": ints(5, -1), "far": ints(9, 9), "hw": ints(2, 3), "two": ints(2, 2)}
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
    nodes = [node("Conv", "x", "F", to="a"), node("Conv", "a", "G", to="b", strides=[2, 2])]
    for name in "ab":
        nodes += chain(("Transpose", {"perm": [0, 2, 3, 1]}), "Reshape anchors", x=name, to=f"head {name}")
    nodes.append(node("Concat", "head a", "head b", axis=1))
    numbers = {"F": normal(8, 3, 2, 2), "G": normal(4, 8, 2, 2), "anchors": ints(0, -1, 4)}
    check(model(nodes, ["n", 3, 6, 6], **numbers), normal(2, 3, 6, 6))


# ---- Selections -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", ["input", "product", "activation", "images"])
@pytest.mark.parametrize("operator", ["Gather", "Slice", "ArrayFeatureExtractor"])
def test_columns_that_constants_pick(before: str, operator: str) -> None:
    first = {
        "input": ["Mul m"],
        "product": ["Gemm V m"],
        "activation": ["Relu"],
        "images": ["Reshape s", "Conv F", "Flatten"],
    }[before]
    picked = {
        "Gather": ("Gather picked", {"axis": 1}),
        "Slice": "Slice starts ends one steps",
        "ArrayFeatureExtractor": ("ArrayFeatureExtractor picked", {"domain": "ai.onnx.ml"}),
    }[operator]
    numbers = {"starts": ints(-1), "ends": ints(1), "one": ints(1), "steps": ints(-2), "picked": ints(7, 0, 3, 3)}
    constants = {"m": normal(8), "V": normal(8, 8), "s": ints(-1, 2, 2, 2), "F": normal(2, 2, 1, 1)}
    constants["W"] = normal(3 if operator == "Slice" else 4, 3)
    made = model(
        chain(*first, picked, "Sub h", "MatMul W"), ["n", 8], ml=True, h=np.float32(0.5), **numbers, **constants
    )
    check(made, normal(4, 8))


def test_channels_and_pixels_that_constants_pick() -> None:
    nodes = chain("Conv F", ("Gather p", {"axis": 1}), "Slice s e k")
    numbers = {"F": normal(4, 2, 2, 2), "p": ints(-1, 0), "s": ints(1, 0), "e": ints(9, 2), "k": ints(3, 2)}
    check(model(nodes, ["n", 2, 5, 4], **numbers), normal(3, 2, 5, 4))
    check(model([node("Gather", "x", "p", axis=2)], ["n", 2, 5], p=np.int64(3)), normal(3, 2, 5))
    check(model([node("Gather", "x", "p", axis=0)], [5, "n"], p=ints(3, 1)), normal(5, 4), axis=1)
    check(model([node("Slice", "x", "s", "e")], ["n", 5], s=ints(0, 1), e=ints(2**31 - 1, 3)), normal(4, 5))


@pytest.mark.parametrize("axis", [1, 2, 3])
@pytest.mark.parametrize("places", [(0, 2), (1, 2), (2, 1)])
def test_numbers_picked_of_images_that_were_scaled_line_by_line(axis: int, places: tuple[int, ...]) -> None:
    constants = {"lines": normal(1, 4, 1), "p": ints(*places)}
    check(model(chain("Mul lines", ("Gather p", {"axis": axis})), ["n", 3, 4, 5], **constants), normal(2, 3, 4, 5))


@pytest.mark.parametrize(
    ("nodes", "why"),
    [
        ([node("Gather", "x", "p", axis=0)], "picks rows of it; .* leave the selection out"),
        ([node("Slice", "x", "p", "q", "zero")], "picks rows of it"),
        ([node("Gather", "x", "far", axis=1)], "picks positions along axis 1 that are not there"),
        ([node("Gather", "x", "p", axis=2)], "which has no axis 2"),
        (chain(cast(np.int64), "Gather table _"), "picks elements of a constant by what the network"),
    ],
)
def test_other_selections_are_refused(nodes: list[Any], why: str) -> None:
    constants = {"p": ints(0), "q": ints(2), "zero": ints(0), "far": ints(9), "table": normal(9)}
    with pytest.raises(InputError, match=why):
        from_onnx(model(nodes, ["n", 5], dtype=np.int64 if nodes[0].op_type == "Cast" else np.float32, **constants))


@pytest.mark.parametrize(("operator", "bound"), [("Max", 0.0), ("Min", 1.0)])
def test_bounds_of_more_axes_give_these_to_results(operator: str, bound: float) -> None:
    nodes = chain(f"{operator} bound", "Squeeze axes")
    made = model(nodes, ["n", 4], bound=np.full((1, 1, 1), bound, np.float32), axes=ints(0))
    check(made, normal(3, 4))


def test_constants_of_more_axes_make_no_activation() -> None:
    nodes = [node("Mul", "x", "one", to="a"), node("Sigmoid", "a", to="s"), node("Mul", "x", "s")]
    with pytest.raises(InputError, match="whose rows lie along other axes"):
        from_onnx(model(nodes, ["n", 4], one=np.ones((1, 1, 1), np.float32)))


# ---- Images whose channels are last ---------------------------------------------------------------------------------

_FIRST, _LAST = ({"perm": order} for order in ([0, 3, 1, 2], [0, 2, 3, 1]))


@pytest.mark.parametrize("channels", [1, 3])
def test_zeros_around_images_whose_channels_are_last(channels: int) -> None:
    pads = ints(0, 1, 2, 0, 0, 1, 0, 0)
    first = chain("Pad pads", ("Transpose", _FIRST), "Conv W", "Relu", ("Transpose", _LAST), to="h")
    rest = chain("Pad pads", ("Transpose", _FIRST), "Conv V", "Flatten", x="h")
    filters = {"W": normal(6, channels, 3, 3), "V": normal(4, 6, 3, 3)}
    network = check(model([*first, *rest], ["n", 24, 20, channels], pads=pads, **filters), normal(2, 24, 20, channels))
    assert not any(isinstance(layer, SparseLinear) and layer.edges > 24 * 20 * channels for layer in network)
    with pytest.raises(InputError, match="along rows or channels"):
        from_onnx(model(chain("Pad pads"), ["n", 5, 4, 2], pads=ints(0, 1, 1, 1, 0, 0, 0, 0)))


def test_convolutions_of_images_whose_channels_are_last_are_no_products() -> None:
    """But for small ones, which are as fast, and go together with rows of features."""
    for size, is_small in ((32, False), (6, True)):
        nodes = chain(("Transpose", _FIRST), "Conv W", "Relu", "Conv V", "Flatten")
        proto = model(nodes, ["n", size, size, 3], W=normal(4, 3, 3, 3), V=normal(5, 4, 3, 3))
        network = check(proto, normal(2, size, size, 3))
        kinds = {type(layer) for layer in network}
        assert (kinds <= {SparseLinear, Linear}) == is_small
        assert (Conv2d in kinds) != is_small
