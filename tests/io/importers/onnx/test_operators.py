"""What each operator becomes: the network gives what the onnx package's reference gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx_graphs import Array, cast, chain, check, ints, model, node, normal

from sparsenn import Session, from_onnx
from sparsenn.errors import InputError
from sparsenn.layers import Add, AvgPool2d, Conv2d, Flatten, Linear, MaxPool2d, Multiply, ReLU, SparseLinear


def kinds(network: Any) -> list[type]:
    return [type(layer) for layer in network]


# ---- Products and sums ----------------------------------------------------------------------------------------------


def test_weights_on_either_side() -> None:
    W = normal(5, 3)
    check(model([node("MatMul", "x", "W")], ["n", 5], W=W), normal(4, 5))
    check(model([node("MatMul", "W", "x")], [5, "n"], W=W.T), normal(5, 4), axis=1)
    check(model([node("MatMul", "W", "x")], [5, 1], W=W.T), normal(5, 1), axis=None)
    check(model([node("MatMul", "W", "x")], [5], W=W.T), normal(5), axis=None)
    check(model([node("MatMul", "x", "W")], [5], W=W), normal(5), axis=None)
    check(model([node("MatMul", "W", "x")], ["n", 5, 1], W=W.T), normal(4, 5, 1))


def test_gemm_with_rows_across() -> None:
    check(model([node("Gemm", "W", "x", "c")], [5, "n"], W=normal(3, 5), c=normal(3, 1)), normal(5, 4), axis=1)
    nodes = chain(("Gemm W", {"transA": 1}), "Transpose")
    check(model(nodes, [5, "n"], W=normal(5, 3)), normal(5, 4), axis=1)


def test_constants_around_a_layer_become_part_of_it() -> None:
    before, after = ("Sub mean", "Div deviation"), ("Mul factor", "Add bias _", "Sub one _", "Neg", "Relu")
    nodes = chain(*before, "MatMul W", *after)
    numbers = {"mean": normal(5), "deviation": np.float32([1, 2, 3, 4, 5]), "factor": normal(1, 3), "bias": normal(3)}
    network = check(model(nodes, ["n", 5], W=normal(5, 3), one=np.float32(1), **numbers), normal(4, 5))
    assert kinds(network) == [Linear]


def test_few_weights_are_kept_sparse() -> None:
    W = normal(20, 30) * (np.random.default_rng(3).random((20, 30)) < 0.1)
    nodes = chain("Mul s", "MatMul W", "Mul t")
    network = check(model(nodes, ["n", 20], W=W, s=normal(20), t=normal(30)), normal(4, 20))
    assert kinds(network) == [SparseLinear]
    assert network.edges == np.count_nonzero(W)


def test_masks_are_folded() -> None:
    mask = (np.random.default_rng(4).random((20, 30)) < 0.1).astype(np.float32)
    nodes = chain("Mul W", ("Transpose", {"perm": [1, 0]}), ("Gemm x _", {"transB": 1}), x="mask")
    network = check(model(nodes, ["n", 20], W=normal(20, 30), mask=mask), normal(4, 20))
    assert network.edges == mask.sum()


@pytest.mark.parametrize("dimensions", [1, 2])
def test_sparse_initialisers(dimensions: int) -> None:
    W = normal(6, 4) * (np.random.default_rng(5).random((6, 4)) < 0.3)
    places = np.argwhere(W) if dimensions == 2 else np.flatnonzero(W)
    proto = model([node("MatMul", "x", "W")], ["n", 6])
    values = onnx.numpy_helper.from_array(W[W != 0], "W")
    sparse = helper.make_sparse_tensor(values, onnx.numpy_helper.from_array(places, "places"), W.shape)
    proto.graph.sparse_initializer.append(sparse)
    (layer,) = from_onnx(proto)
    np.testing.assert_array_equal(layer.weights.to_scipy().toarray(), W)


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_other_floats(dtype: Any) -> None:
    W, x = normal(5, 3).astype(dtype), normal(4, 5).astype(dtype)
    check(model([node("MatMul", "x", "W")], ["n", 5], dtype=dtype, W=W), x, tolerance=2e-3)


def test_quantised_weights() -> None:
    W = np.random.default_rng(6).integers(-128, 127, (5, 3)).astype(np.int8)
    nodes = [node("DequantizeLinear", "W", "s", to="V", axis=1), node("MatMul", "x", "V")]
    scales = np.float32([0.1, 0.2, 0.3])
    (layer,) = check(model(nodes, ["n", 5], 21, W=W, s=scales), normal(4, 5))
    (older,) = from_onnx(model(nodes, ["n", 5], 13, W=W, s=scales))
    np.testing.assert_array_equal(older.weights, layer.weights)


def test_integers_that_are_cast() -> None:
    proto = model(chain(cast(np.float32), "MatMul W"), ["n", 5], dtype=np.int64, W=normal(5, 3))
    check(proto, np.random.default_rng(7).integers(-5, 5, (4, 5)))
    with pytest.raises(InputError, match=r"node 1 \(Mul\): .* integers"):
        from_onnx(model([node("Mul", "x", "two")], ["n", 5], dtype=np.int64, two=np.int64(2)))


@pytest.mark.parametrize("epsilon", [1e-5, 0.1])
def test_normalisation_is_folded(epsilon: float) -> None:
    numbers = {"s": normal(5), "b": normal(5), "m": normal(5), "v": np.abs(normal(5))}
    last = chain("MatMul W", ("BatchNormalization s b m v", {"epsilon": epsilon}))
    assert kinds(check(model(last, ["n", 4], W=normal(4, 5), **numbers), normal(3, 4))) == [Linear]
    first = chain("BatchNormalization s b m v", "MatMul W")
    assert kinds(check(model(first, ["n", 5], W=normal(5, 2), **numbers), normal(3, 5))) == [Linear]


def test_constants_made_by_nodes() -> None:
    nodes = [
        node("Constant", to="one", value_float=1.5),
        node("Constant", to="sizes", value_ints=[5, 3]),
        node("ConstantOfShape", "sizes", to="W", value=onnx.numpy_helper.from_array(np.float32([0.25]))),
        node("Mul", "x", "one", to="a"),
        node("MatMul", "a", "W"),
    ]
    check(model(nodes, ["n", 5]), normal(4, 5))


def test_initialisers_that_are_inputs_too() -> None:
    proto = model([node("MatMul", "x", "W")], ["n", 5], W=normal(5, 3))
    proto.ir_version = 3
    proto.graph.input.append(helper.make_tensor_value_info("W", onnx.TensorProto.FLOAT, [5, 3]))
    assert from_onnx(proto).outputs == 3


# ---- Activations ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bounds", [(0.0, 1.0), (-0.5, 0.25), (None, 0.5), (-0.5, None), (None, None)])
@pytest.mark.parametrize("opset", [7, 17])
def test_bounds(bounds: tuple[float | None, float | None], opset: int) -> None:
    if opset == 7:
        given = {name: bound for name, bound in zip(("min", "max"), bounds, strict=True) if bound is not None}
        clip, constants = node("Clip", "z", **given), {}
    else:
        constants = {name: np.float32(bound) for name, bound in zip("lh", bounds, strict=True) if bound is not None}
        clip = node("Clip", "z", *("l" if "l" in constants else "", *(("h",) if "h" in constants else ())))
    check(model([node("MatMul", "x", "W", to="z"), clip], ["n", 5], opset, W=normal(5, 3), **constants), normal(9, 5))


def test_the_bound_of_a_relu() -> None:
    nodes = chain("MatMul W", "Clip l h")
    (layer,) = check(model(nodes, ["n", 5], W=normal(5, 3), l=np.float32(0), h=np.float32(6)), normal(4, 5) * 9)
    assert layer.activation == ReLU(6.0)


def test_other_bounds() -> None:
    nodes = chain("HardSigmoid", "Max l", "Min h _")
    check(model(nodes, ["n", 5], l=np.float32(0.3), h=np.float32(0.6)), normal(4, 5))


# ---- Images ---------------------------------------------------------------------------------------------------------


def test_images_without_an_axis_of_rows() -> None:
    nodes = chain("Squeeze first", "Unsqueeze first", ("Conv W", {"pads": [1, 1]}))
    check(model(nodes, [1, 3, 9], W=normal(2, 3, 3), first=ints(0)), normal(1, 3, 9))


def test_rows_of_pixels() -> None:
    pool = ("MaxPool", {"kernel_shape": [2], "strides": [2]})
    front = (("Conv W", {"pads": [1, 2], "strides": [2]}), "Relu", pool)
    for last in ((("AveragePool", {"kernel_shape": [2]}), "Flatten"), ("GlobalAveragePool",)):
        check(model(chain(*front, *last), ["n", 2, 15], W=normal(3, 2, 3)), normal(4, 2, 15))


@pytest.mark.parametrize("operator", ["MaxPool", "AveragePool", "AveragePool counted"])
@pytest.mark.parametrize(
    "form",
    [
        {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1},
        {"kernel_shape": [2, 3], "strides": [3, 2], "pads": [1, 0, 0, 2]},
        {"kernel_shape": [3, 4], "strides": [2, 3], "pads": [2, 1, 0, 3]},
        {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"},
        {"kernel_shape": [3, 2], "strides": [2, 1], "auto_pad": "SAME_LOWER"},
        {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "VALID"},
        {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [1, 1, 1, 1], "ceil_mode": 1},
    ],
    ids=str,
)
def test_windows_beyond_an_image(operator: str, form: dict[str, Any]) -> None:
    counts = {"count_include_pad": 1} if "counted" in operator else {}
    nodes = chain("Conv F", (operator.split()[0], form | counts), "Conv G")
    weights = {"F": normal(3, 2, 1, 1), "G": normal(2, 3, 2, 2)}
    proto, images = model(nodes, ["n", 2, 6, 9], 19, **weights), normal(3, 2, 6, 9)
    network = from_onnx(proto, foreign=False)
    runtime = pytest.importorskip("onnxruntime", reason="the reference pads otherwise")
    (expected,) = runtime.InferenceSession(proto.SerializeToString()).run(None, {"x": images})
    found = Session(network, device="cpu")(images).reshape(expected.shape)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert kinds(network) == [Conv2d, MaxPool2d if operator == "MaxPool" else AvgPool2d, Conv2d]


def test_a_mean_that_counts_padding_but_not_what_is_beyond() -> None:
    form = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1], "ceil_mode": 1, "count_include_pad": 1}
    proto = model([node("AveragePool", "x", **form)], ["n", 2, 6, 9], 19)
    with pytest.raises(InputError, match="beyond the padding"):
        from_onnx(proto, foreign=False)


def test_an_activation_after_pooling_goes_before_it() -> None:
    nodes = chain("Conv W", ("MaxPool", {"kernel_shape": [2, 2]}), "Relu", "Flatten", "MatMul V")
    network = check(model(nodes, ["n", 1, 6, 6], W=normal(2, 1, 3, 3), V=normal(18, 4)), normal(3, 1, 6, 6))
    assert kinds(network) == [Conv2d, MaxPool2d, Flatten, Linear]
    assert network[0].activation == ReLU()


@pytest.mark.parametrize("pads", [[0] * 4, [1] * 4])
def test_constants_around_a_convolution(pads: list[int]) -> None:
    numbers = {"mean": normal(3, 1, 1), "factor": normal(4, 1, 1), "s": np.float32(0.1)}
    nodes = chain("Mul s", "Sub mean", ("Conv W", {"pads": pads, "group": 1}), "Mul factor", "Add factor", "Relu")
    network = check(model(nodes, ["n", 3, 6, 5], W=normal(4, 3, 3, 3), **numbers), normal(2, 3, 6, 5))
    assert kinds(network) == ([Conv2d, Conv2d] if any(pads) else [Conv2d])


# ---- Movements ------------------------------------------------------------------------------------------------------


def test_a_shape_that_is_computed() -> None:
    nodes = chain("Shape", "Gather zero", "Unsqueeze first", ("Concat _ rest", {"axis": 0}), "Reshape x _", "MatMul W")
    numbers = {"zero": np.array(0), "first": ints(0), "rest": ints(-1)}
    check(model(nodes, ["n", 3, 4], W=normal(12, 5), **numbers), normal(2, 3, 4))


def test_axes_in_another_order() -> None:
    nodes = chain("Conv W", ("Transpose", {"perm": [0, 2, 3, 1]}), "Mul s", "Reshape shape", "MatMul V")
    numbers = {"W": normal(4, 3, 2, 2), "V": normal(80, 5), "s": normal(5, 4, 4), "shape": ints(-1, 80)}
    check(model(nodes, ["n", 3, 6, 5], **numbers), normal(2, 3, 6, 5))
    check(model([node("Transpose", "x", perm=[0, 2, 1])], ["n", 3, 4]), normal(2, 3, 4))


def test_the_output_may_be_channels_last() -> None:
    nodes = chain("Conv W", ("Transpose", {"perm": [0, 2, 3, 1]}))
    check(model(nodes, ["n", 3, 6, 5], W=normal(4, 3, 2, 2)), normal(2, 3, 6, 5))


def test_images_may_be_channels_last() -> None:
    first = ("Transpose", {"perm": [0, 3, 1, 2]})
    check(model(chain(first, "Conv W"), ["n", 6, 5, 1], W=normal(4, 1, 2, 2)), normal(2, 6, 5, 1))
    check(model(chain(first, ("MaxPool", {"kernel_shape": [2, 2]})), ["n", 6, 5, 3]), normal(2, 6, 5, 3))


def test_a_fixed_number_of_rows_is_left_open() -> None:
    nodes = chain("Reshape shape", "MatMul W")
    assert from_onnx(model(nodes, [1, 1, 2, 3], W=normal(6, 5), shape=ints(1, 6))).inputs == 6
    check(model(nodes, [1, 2, 3], W=normal(6, 5), shape=ints(-1)), normal(1, 2, 3), axis=None)


# ---- Classes --------------------------------------------------------------------------------------------------------


def test_two_classes_of_one_number() -> None:
    nodes = [*chain("MatMul W", "Sigmoid", to="p"), *chain("Sub one _", ("Concat _ p", {"axis": 1}), x="p")]
    network = check(model(nodes, ["n", 5], W=normal(5, 1), one=np.float32(1)), normal(4, 5))
    assert network.outputs == 2


def test_a_sum_of_products_of_one_tensor() -> None:
    nodes = [node("MatMul", "x", "V", to="a"), node("MatMul", "x", "W", to="b"), node("Add", "a", "b")]
    assert kinds(check(model(nodes, ["n", 5], V=normal(5, 3), W=normal(5, 3)), normal(4, 5))) == [Linear]


def test_the_largest_is_left_to_the_caller() -> None:
    assert from_onnx(model(chain("MatMul W", ("ArgMax", {"axis": 1})), ["n", 5], W=normal(5, 3))).outputs == 3


# ---- Branches -------------------------------------------------------------------------------------------------------


def test_residual_sums() -> None:
    W, V = normal(5, 5), normal(5, 5)
    inner = [node("MatMul", "x", "W", to="a"), node("Relu", "a", to="b"), node("MatMul", "b", "V", to="c")]
    made = [*inner, node("Add", "c", "x", to="s"), node("Relu", "s")]
    network = check(model(made, ["n", 5], W=W, V=V), normal(4, 5))
    assert kinds(network) == [Linear, Linear, Add]
    assert network.nodes[2].sources == (2, 0)
    assert network[2] == Add(activation=ReLU())
    check(model([*inner, node("Sub", "x", "c")], ["n", 5], W=W, V=V), normal(4, 5))
    check(model([*inner, node("Sum", "x", "c", "b", "x")], ["n", 5], W=W, V=V), normal(4, 5))
    check(model([*inner, node("Sum", "c")], ["n", 5], W=W, V=V), normal(4, 5))


def test_products() -> None:
    weights = {"W": normal(5, 5), "V": normal(5, 5)}
    inner = [node("MatMul", "x", "W", to="a"), node("Sigmoid", "a", to="b"), node("MatMul", "x", "V", to="c")]
    made = [*inner, node("Mul", "b", "c", to="s"), node("Relu", "s")]
    network = check(model(made, ["n", 5], **weights), normal(4, 5))
    assert kinds(network) == [Linear, Linear, Multiply]
    assert network[2] == Multiply(activation=ReLU())
    check(model([*inner, node("Mul", "x", "b")], ["n", 5], **weights), normal(4, 5))
    check(model([node("Tanh", "x", to="a"), node("Mul", "x", "a")], ["n", 5]), normal(4, 5))
    check(model([node("Mul", "x", "x")], ["n", 5]), normal(4, 5))
    check(model([node("Mul", "x", "x")], ["n", 2, 3, 4]), normal(4, 2, 3, 4))
    scaled = [node("Mul", "x", "two", to="t"), node("Mul", "t", "b")]
    check(model([*inner, *scaled], ["n", 5], two=np.float32(2), **weights), normal(4, 5))


@pytest.mark.parametrize("excitation", ["convolutions", "products"])
@pytest.mark.parametrize("swapped", [False, True])
def test_squeeze_and_excitation(excitation: str, swapped: bool) -> None:
    squeezed = [node("Conv", "x", "F", to="a"), node("GlobalAveragePool", "a", to="b")]
    last = [node("Mul", *(("i", "a") if swapped else ("a", "i")), to="y0"), node("Conv", "y0", "K")]
    if excitation == "convolutions":
        gate = chain("Conv G", "Relu", "Conv H", "HardSigmoid", x="b", to="i")
        weights = {"G": normal(2, 4, 1, 1), "H": normal(4, 2, 1, 1)}
    else:
        gate = chain("Flatten", "Gemm G", "Relu", "Gemm H", "Sigmoid", "Reshape s", x="b", to="i")
        weights = {"G": normal(4, 2), "H": normal(2, 4), "s": ints(-1, 4, 1, 1)}
    weights |= {"F": normal(4, 3, 3, 3), "K": normal(2, 4, 1, 1)}
    network = check(model([*squeezed, *gate, *last], ["n", 3, 6, 5], **weights), normal(3, 3, 6, 5))
    assert sum(isinstance(layer, Multiply) for layer in network) == 1


def test_channels_of_sequences_have_factors() -> None:
    made = [node("Conv", "x", "F", to="a"), node("GlobalAveragePool", "a", to="b"), node("Mul", "a", "b")]
    check(model(made, ["n", 3, 6], F=normal(4, 3, 2)), normal(3, 3, 6))


def test_concatenated_channels() -> None:
    filters = {"F": normal(3, 2, 1, 1), "G": normal(4, 2, 3, 3)}
    made = [
        node("Conv", "x", "F", to="a"),
        node("Conv", "x", "G", to="b", pads=[1, 1, 1, 1]),
        node("MaxPool", "x", to="c", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("Tanh", "a", to="d"),
        node("Concat", "d", "b", "x", "c", axis=1),
    ]
    check(model(made, ["n", 2, 5, 6], **filters), normal(3, 2, 5, 6))
    made = [node("Conv", "x", name, to=name.lower(), strides=[2, 2]) for name in "FG"]
    flat = [node("Flatten", "f", to="a"), node("Flatten", "g", to="b"), node("Concat", "b", "a", axis=1)]
    check(model([*made, *flat], ["n", 2, 5, 7], **filters), normal(3, 2, 5, 7))


def test_rows_and_images_of_one_input_are_not_combined() -> None:
    made = [*chain("Flatten", "MatMul W", to="a"), *chain("Conv F", "Flatten", ("Concat a _", {"axis": 1}))]
    proto = model(made, ["n", 2, 4, 4], F=normal(3, 2, 1, 1), W=normal(32, 5))
    with pytest.raises(InputError, match=r"node 5 \(Concat\): "):
        from_onnx(proto)


def test_what_several_take_is_computed_once() -> None:
    """As in a network of dense blocks: what each layer takes is all that those before it gave."""
    nodes, taken = [node("MatMul", "x", "W0", to="f0")], ["x", "f0"]
    for number in range(1, 12):
        nodes.append(node("Concat", *taken, to=f"c{number}", axis=1))
        nodes.append(node("MatMul", f"c{number}", f"W{number}", to=f"m{number}"))
        nodes.append(node("Relu", f"m{number}", to=f"f{number}"))
        taken.append(f"f{number}")
    nodes.append(node("Concat", *taken, axis=1))
    weights = {f"W{number}": normal(3 + 2 * number, 2) for number in range(12)}
    network = check(model(nodes, ["n", 3], **weights), normal(4, 3))
    assert sum(isinstance(layer, Linear) for layer in network) == 13  # the first with an identity for its own output


# ---- Refused --------------------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[list[Any], dict[str, Array], str]] = {
    "operator": ([node("ThresholdedRelu", "x")], {}, r"node 1 \(ThresholdedRelu\): no layer does that"),
    "unknown": ([node("Erf", "x")], {}, r"node 1 \(Erf\)"),
    "factor of rows": ([node("MatMul", "x", "W", to="a"), node("Mul", "x", "a")], {"W": normal(5, 1)},
                       r"node 2 \(Mul\): it multiplies 5 and 1, which are not of one shape"),
    "along rows": ([node("Relu", "x", to="a"), node("Concat", "x", "a", axis=0)], {}, "concatenates them along axis 0"),
    "widths": ([node("MatMul", "x", "W", to="a"), node("Relu", "a", to="b"), node("Add", "x", "b")],
               {"W": normal(5, 3)}, r"node 3 \(Add\): it adds 5 and 3, which are not of one shape"),
    "attribute": ([node("Relu", "x", alpha=1.0)], {}, r"node 1 \(Relu\): .*alpha"),
    "domain": ([node("Relu", "x", domain="com.example")], {}, "its domain 'com.example' is not one of ONNX's"),
    "missing": ([node("Add", "x", "nothing")], {}, "'nothing' is not an input"),
    "cycle": ([node("Add", "z", "x"), node("Relu", "y", to="z")], {}, "'z' is not an input"),
    "twice": ([node("Relu", "x", to="x"), node("Relu", "x")], {}, "'x' is given twice"),
    "nan": ([node("MatMul", "x", "W")], {"W": np.full((5, 3), np.nan, np.float32)}, "the weights hold NaN"),
    "shapes": ([node("MatMul", "x", "W")], {"W": normal(4, 3)}, "its weights take 4 inputs"),
    "addend": ([node("Add", "x", "b")], {"b": normal(4)}, r"the shape \(4,\), and it takes a tensor of shape"),
    "by row": ([node("Add", "x", "b")], {"b": normal(2, 5)}, "differs from row to row"),
    "zero": ([node("Div", "x", "b")], {"b": np.zeros(5, np.float32)}, "NaN or infinity"),
    "rows": ([node("Reshape", "x", "s")], {"s": np.array([5, -1])}, "mixes rows"),
    "rows summed": ([node("MatMul", "W", "x")], {"W": normal(3, 4)}, "sums over rows"),
    "huge": ([node("Expand", "b", "s", to="c"), node("Add", "x", "c")],
             {"b": normal(1), "s": np.array([1 << 40, 5])}, r"node 1 \(Expand\)"),
    "no output": ([node("Relu", "x", to="a")], {}, "'y' is not an input"),
    "far bound": ([node("Clip", "x", "b")], {"b": np.float32(-1e6)}, "its bound of -1e"),
    "far limit": ([node("Clip", "x", "", "b")], {"b": np.float32(1e6)}, "its bound of 1e"),
    "training": ([node("Dropout", "x", "r", "t")], {"r": np.float32(0.5), "t": np.array(True)}, "as in training"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused_naming_node_and_operator(case: str) -> None:
    from sparsenn.errors import SparseNNError

    nodes, constants, why = REFUSED[case]
    with pytest.raises(SparseNNError, match=why) as caught:
        from_onnx(model(nodes, ["n", 5], **constants))
    assert "\n" not in str(caught.value)


def test_a_node_is_refused_also_where_the_package_does_not_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(*_: Any) -> None:
        raise onnx.checker.ValidationError

    monkeypatch.setattr(onnx.checker, "check_node", silent)
    with pytest.raises(InputError, match=r"node 1 \(Relu\): ValidationError$"):
        from_onnx(model([node("Relu", "x")], ["n", 5]))
