"""Operators whose form changed between opsets, in each form; NumPy computes what the opset's specification says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx_graphs import helper, model, node, normal

from sparsenn import Session, from_onnx
from sparsenn.errors import SparseNNError

OPSETS = (7, 8, 9, 10, 11, 12, 13, 14, 15, 18, 19, 21, 22)
"""Those that changed one of the operators below, and the first and last of those tested."""


def opsets(first: int, last: int) -> Any:
    return pytest.mark.parametrize("opset", [opset for opset in OPSETS if first <= opset <= last])


def has(proto: Any, x: np.ndarray, want: np.ndarray) -> None:
    network = from_onnx(proto)
    found = Session(network, device="cpu")(x.astype(np.float32).reshape(-1, network.inputs))
    assert found.size == want.size
    np.testing.assert_allclose(found, want.reshape(found.shape), rtol=2e-5, atol=2e-5)


def refused(proto: Any, reason: str) -> None:
    with pytest.raises(SparseNNError, match=reason):
        from_onnx(proto)


@opsets(7, 10)
def test_clip_has_attributes(opset: int) -> None:
    x = normal(4, 5)
    has(model([node("Clip", "x", min=0.0, max=0.5)], ["n", 5], opset), x, x.clip(0.0, 0.5))
    has(model([node("Clip", "x", min=0.0)], ["n", 5], opset), x, x.clip(0.0))


@opsets(11, 22)
def test_clip_has_inputs(opset: int) -> None:
    x, bounds = normal(4, 5), {"low": np.float32(0.0), "high": np.float32(0.5)}
    has(model([node("Clip", "x", "low", "high")], ["n", 5], opset, **bounds), x, x.clip(0.0, 0.5))
    has(model([node("Clip", "x", "", "high")], ["n", 5], opset, **bounds), x, x.clip(None, 0.5))
    refused(model([node("Clip", "x", min=0.0)], ["n", 5], opset), "node 1 [(]Clip[)]: .*min")


@opsets(7, 12)
def test_axes_are_attributes(opset: int) -> None:
    x = normal(4, 1, 5)
    has(model([node("Squeeze", "x", to="a", axes=[1]), node("Relu", "a")], ["n", 1, 5], opset), x, x.clip(0))
    has(model([node("Unsqueeze", "x", to="a", axes=[1]), node("Relu", "a")], ["n", 1, 5], opset), x, x.clip(0))
    has(model([node("Squeeze", "x", to="a"), node("Relu", "a")], ["n", 1, 5], opset), x, x.clip(0))


@opsets(13, 22)
def test_axes_are_inputs(opset: int) -> None:
    x, axes = normal(4, 1, 5), np.array([1])
    for operator in ("Squeeze", "Unsqueeze"):
        has(
            model([node(operator, "x", "axes", to="a"), node("Relu", "a")], ["n", 1, 5], opset, axes=axes), x, x.clip(0)
        )
        refused(model([node(operator, "x", axes=[1])], ["n", 1, 5], opset), f"node 1 [(]{operator}[)]: ")


@opsets(7, 11)
def test_dropout_has_a_ratio(opset: int) -> None:
    x = normal(4, 5)
    has(model([node("Dropout", "x", to="a", ratio=0.9), node("Relu", "a")], ["n", 5], opset), x, x.clip(0))


@opsets(12, 22)
def test_dropout_has_inputs(opset: int) -> None:
    x, given = normal(4, 5), {"ratio": np.float32(0.9), "off": np.array(False), "on": np.array(True)}
    for names in (["ratio"], ["ratio", "off"], ["", "off"], []):
        nodes = [node("Dropout", "x", *names, to="a"), node("Relu", "a")]
        has(model(nodes, ["n", 5], opset, **given), x, x.clip(0))
    refused(model([node("Dropout", "x", "ratio", "on")], ["n", 5], opset, **given), "node 1 [(]Dropout[)]: it drops")


def normalisation(opset: int, outputs: list[str] | None = None, **attributes: Any) -> Any:
    made = node("BatchNormalization", "x", "s", "b", "m", "v", **attributes)
    made.output.extend(outputs or [])
    numbers = {"s": [1, 2, 3], "b": [1, 0, -1], "m": [0.5, 0, 2], "v": [1, 4, 9]}
    return model([made], ["n", 3, 2, 2], opset, **{name: np.float32(each) for name, each in numbers.items()})


NORMALISED = np.array([[1, 2, 3], [1, 0, -1], [0.5, 0, 2], [1, 4, 9]], np.float64)[..., None, None]


def normalised(x: np.ndarray) -> np.ndarray:
    scale, shift, mean, variance = NORMALISED
    return (x - mean) / np.sqrt(variance + 1e-5) * scale + shift


@opsets(7, 22)
def test_normalisation(opset: int) -> None:
    x = normal(4, 3, 2, 2)
    has(normalisation(opset), x, normalised(x))
    has(normalisation(opset, momentum=0.1), x, normalised(x))


@opsets(7, 8)
def test_normalisation_by_pixel(opset: int) -> None:
    has(normalisation(opset, spatial=1), x := normal(4, 3, 2, 2), normalised(x))
    refused(normalisation(opset, spatial=0), "it normalises pixel by pixel")


@opsets(14, 22)
def test_normalisation_by_batch(opset: int) -> None:
    has(normalisation(opset, training_mode=0), x := normal(4, 3, 2, 2), normalised(x))
    refused(normalisation(opset, ["mean", "var"], training_mode=1), "it normalises by the batch")


@opsets(7, 10)
def test_gemm_has_an_addend(opset: int) -> None:
    x, given = normal(4, 5), {"W": normal(5, 3), "b": normal(3)}
    has(model([node("Gemm", "x", "W", "b")], ["n", 5], opset, **given), x, x @ given["W"] + given["b"])
    refused(model([node("Gemm", "x", "W")], ["n", 5], opset, **given), "node 1 [(]Gemm[)]: ")


@opsets(11, 22)
def test_gemm_may_have_an_addend(opset: int) -> None:
    x, given = normal(4, 5), {"W": normal(5, 3), "b": normal(3)}
    has(model([node("Gemm", "x", "W", "b")], ["n", 5], opset, **given), x, x @ given["W"] + given["b"])
    has(model([node("Gemm", "x", "W")], ["n", 5], opset, **given), x, x @ given["W"])


def shares(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


@opsets(7, 12)
def test_softmax_takes_axes_together(opset: int) -> None:
    x = normal(4, 2, 3)
    together = shares(x.reshape(4, 6)).reshape(4, 2, 3)
    has(model([node("Softmax", "x")], ["n", 2, 3], opset), x, together)  # axis 1 unless told
    has(model([node("Softmax", "x", axis=1)], ["n", 2, 3], opset), x, together)
    one = normal(1, 2, 3)
    has(model([node("Softmax", "x", axis=1)], [1, 2, 3], opset), one, shares(one.reshape(1, 6)))
    refused(model([node("Softmax", "x", axis=2)], ["n", 2, 3], opset), "node 1 [(]Softmax[)]: ")
    refused(model([node("Softmax", "x", axis=0)], ["n", 2, 3], opset), "node 1 [(]Softmax[)]: ")


@opsets(13, 22)
def test_softmax_takes_one_axis(opset: int) -> None:
    x = normal(4, 6)
    has(model([node("Softmax", "x")], ["n", 6], opset), x, shares(x))  # the last axis unless told
    has(model([node("Softmax", "x", axis=1)], ["n", 6], opset), x, shares(x))
    for axis in (-1, 1, 0):
        refused(model([node("Softmax", "x", axis=axis)], ["n", 2, 3], opset), "node 1 [(]Softmax[)]: ")


@opsets(7, 17)
def test_a_mean_has_an_attribute(opset: int) -> None:
    x = normal(4, 3, 2, 2)
    for keepdims in (0, 1):
        proto = model([node("ReduceMean", "x", axes=[2, 3], keepdims=keepdims)], ["n", 3, 2, 2], opset)
        has(proto, x, x.mean(axis=(2, 3)))
    if opset >= 11:
        has(model([node("ReduceMean", "x", axes=[-1, -2])], ["n", 3, 2, 2], opset), x, x.mean(axis=(2, 3)))


@opsets(18, 22)
def test_a_mean_has_an_input(opset: int) -> None:
    x, axes = normal(4, 3, 2, 2), np.array([2, 3])
    for keepdims in (0, 1):
        proto = model([node("ReduceMean", "x", "axes", keepdims=keepdims)], ["n", 3, 2, 2], opset, axes=axes)
        has(proto, x, x.mean(axis=(2, 3)))
    refused(model([node("ReduceMean", "x", axes=[2, 3])], ["n", 3, 2, 2], opset), "node 1 [(]ReduceMean[)]: ")
    nothing = model([node("ReduceMean", "x", noop_with_empty_axes=1)], ["n", 3, 2, 2], opset)
    refused(nothing, "node 1 [(]ReduceMean[)]: ")


@opsets(7, 22)
def test_reshape(opset: int) -> None:
    x, shape = normal(4, 6), np.array([0, 2, 3])
    has(model([node("Reshape", "x", "shape", to="a"), node("Relu", "a")], ["n", 6], opset, shape=shape), x, x.clip(0))
    copying = node("Reshape", "x", "shape", allowzero=1)
    reason = "makes a tensor without numbers" if opset >= 14 else "node 1 [(]Reshape[)]: .*allowzero"
    refused(model([copying], ["n", 6], opset, shape=shape), reason)


def cast(value: str, kind: int) -> Any:
    return helper.make_node("Cast", [value], ["y"], to=kind)


@opsets(7, 22)
def test_a_cast(opset: int) -> None:
    x = normal(4, 5)
    for kind in (1, 10, 11):
        has(model([node("Relu", "x", to="a"), cast("a", kind)], ["n", 5], opset), x, x.clip(0))
    refused(model([node("Relu", "x", to="a"), cast("a", 6)], ["n", 5], opset), "node 2 [(]Cast[)]: ")


def windows(x: np.ndarray) -> np.ndarray:
    """The windows of 3 by 3, 2 apart; the last two axes are theirs."""
    return np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(2, 3))[:, :, ::2, ::2]


@pytest.mark.parametrize("operator", ["MaxPool", "AveragePool"])
@opsets(7, 22)
def test_pooling(operator: str, opset: int) -> None:
    x, reduced = normal(2, 3, 7, 7), {"MaxPool": np.max, "AveragePool": np.mean}[operator]
    want = reduced(windows(x), axis=(4, 5))
    how = {"kernel_shape": [3, 3], "strides": [2, 2]}
    has(model([node(operator, "x", **how)], ["n", 3, 7, 7], opset), x, want)
    rounded = model([node(operator, "x", ceil_mode=1, **how)], ["n", 3, 7, 7], opset)
    apart = model([node(operator, "x", dilations=[2, 2], **how)], ["n", 3, 7, 7], opset)
    if opset >= 10:
        has(rounded, x, want)
    else:
        refused(rounded, f"node 1 [(]{operator}[)]: .*ceil_mode")
    refused(apart, f"node 1 [(]{operator}[)]: ")
    whole = model([node("Global" + operator, "x")], ["n", 3, 7, 7], opset)
    has(whole, x, reduced(x, axis=(2, 3)))


@pytest.mark.parametrize("include", [0, 1])
@opsets(7, 22)
def test_means_with_padding(include: int, opset: int) -> None:
    x = normal(2, 1, 4, 4)
    padded, ones = (np.pad(each, ((0, 0), (0, 0), (1, 1), (1, 1))) for each in (x, np.ones_like(x)))
    parts = [
        [slice(2 * down, 2 * down + 2), slice(2 * across, 2 * across + 2)] for down in range(3) for across in range(3)
    ]
    sums = np.stack([padded[:, :, down, across].sum(axis=(2, 3)) for down, across in parts], -1)
    counts = 4 if include else np.stack([ones[:, :, down, across].sum(axis=(2, 3)) for down, across in parts], -1)
    how = {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [1] * 4, "count_include_pad": include}
    has(model([node("AveragePool", "x", **how)], ["n", 1, 4, 4], opset), x, sums / counts)


@opsets(7, 22)
def test_padding(opset: int) -> None:
    def padded(pads: list[int], size: list[Any], **attributes: Any) -> Any:
        if opset < 11:
            return model([node("Pad", "x", pads=pads, **attributes)], size, opset)
        return model([node("Pad", "x", "pads", **attributes)], size, opset, pads=np.array(pads))

    x = normal(2, 3, 4, 5)
    has(padded([0, 0, 1, 0, 0, 0, 0, 2], ["n", 3, 4, 5]), x, np.pad(x, ((0, 0), (0, 0), (1, 0), (0, 2))))
    refused(padded([0, 1, 0, 1], ["n", 5]), "node 1 [(]Pad[)]: takes images")
    refused(padded([0, 1, 0, 0, 0, 0, 0, 0], ["n", 3, 4, 5]), "along rows or channels")
    refused(padded([0, 0, 1, 0, 0, 0, 0, 0], ["n", 3, 4, 5], mode="edge"), "mode edge")


def test_older_opsets_are_refused() -> None:
    refused(model([node("Relu", "x")], ["n", 5], 6), "7")
