"""Bags of weights become networks: in order, either way round, masked, with what stands between told or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from real_networks import DEVICES, RIGHT, images_and_labels
from scipy.sparse import csr_array, save_npz

from sparsenn.engine import Session
from sparsenn.errors import FileFormatError, InputError, SparseNNError, UsageError
from sparsenn.io import from_weights
from sparsenn.layers import AvgPool2d, Conv2d, Flatten, Identity, Linear, MaxPool2d, ReLU, Softmax, SparseLinear, Tanh
from sparsenn.network import Network

RNG = np.random.default_rng(7)
FIRST, SECOND = RNG.normal(size=(5, 7)).astype(np.float32), RNG.normal(size=(3, 5)).astype(np.float32)
BIAS = np.arange(5, dtype=np.float32)
ROWS = RNG.normal(size=(4, 7)).astype(np.float32)


def outputs(network: Network, rows: Any = ROWS) -> np.ndarray:
    return Session(network, device="reference")(rows)


EXPECTED = np.maximum(ROWS @ FIRST.T + BIAS, 0) @ SECOND.T


@pytest.mark.parametrize(
    "bag",
    [
        {"weight1": FIRST, "weight2": SECOND, "bias1": BIAS},
        {"W1": FIRST.T, "b1": BIAS, "W2": SECOND.T},
        {"fc.0.weight": FIRST, "fc.0.bias": BIAS, "fc.2.weight": SECOND},
        {"dense/kernel:0": FIRST.T, "dense/bias:0": BIAS, "out/kernel:0": SECOND.T},
        {"arr_0": FIRST, "arr_1": BIAS, "arr_2": SECOND},
        {"coefs_0": FIRST.T, "intercepts_0": BIAS, "coefs_1": SECOND.T},
        {"a.weight": csr_array(FIRST), "a.bias": BIAS.tolist(), "b.weight": SECOND.tolist()},
        {"1.weight_orig": FIRST * 2, "1.weight_mask": np.full((5, 7), 0.5), "1.bias": BIAS, "2.weight": SECOND},
        {"layer10_weight": SECOND, "layer9_weight": FIRST, "layer9_bias": BIAS},
        {f"layer1{5000 * '0'}_weight": SECOND, "layer09_weight": FIRST, "layer09_bias": BIAS},
    ],
)
def test_matched_in_order(bag: dict[str, Any]) -> None:
    network = from_weights(bag)
    assert [layer.activation for layer in network] == [ReLU(), Identity()]
    np.testing.assert_allclose(outputs(network), EXPECTED, rtol=1e-5, atol=1e-6)


def test_few_weights_make_sparse_layers() -> None:
    assert isinstance(from_weights({"fc.weight": np.eye(4, 8)})[0], SparseLinear)
    assert isinstance(from_weights({"fc.weight": np.eye(4, 8)}, sparse_below=0)[0], Linear)


def test_layers_with_what_stands_between_them() -> None:
    bag = {
        "out.weight": RNG.normal(size=(2, 12)),
        "conv.weight": RNG.normal(size=(3, 1, 3, 3)),
        "norm.weight": np.array([2.0, 3, 4]),
        "norm.bias": np.ones(3),
        "norm.running_mean": np.array([0.5, 0, 0]),
        "norm.running_var": np.array([4.0, 1, 9]),
        "norm.num_batches_tracked": np.int64(9),
    }
    network = from_weights(bag, ["conv", "norm", ReLU(), MaxPool2d(2), Flatten(), "out"], image=(1, 6, 6))
    assert [type(layer) for layer in network] == [Conv2d, MaxPool2d, Flatten, Linear]
    factor = bag["norm.weight"] / np.sqrt(bag["norm.running_var"] + 1e-5)
    np.testing.assert_allclose(network[0].weights, bag["conv.weight"] * factor[:, None, None, None], rtol=1e-6)
    np.testing.assert_allclose(network[0].bias, 1 - bag["norm.running_mean"] * factor, rtol=1e-6)


CONVOLUTIONS = {
    "conv.weight": RNG.normal(size=(3, 1, 3, 3)),
    "relu.weight": RNG.normal(size=(2, 12)),
    "relu.bias": np.ones(2),
}


@pytest.mark.parametrize(
    ("text", "between"),
    [
        ("relu6,max_pool2", [ReLU(6.0), MaxPool2d(2)]),
        (" relu0.5 , avg_pool2/2", [ReLU(0.5), AvgPool2d(2)]),
        ("identity,max_pool3/1", [Identity(), MaxPool2d(3, 1)]),
        ("tanh,max_pool1,avg_pool3/1", [Tanh(), MaxPool2d(1), AvgPool2d(3, 1)]),
    ],
)
def test_layers_as_a_text(text: str, between: list[Any]) -> None:
    expected = from_weights(CONVOLUTIONS, ["conv", *between, Flatten(), "relu", Softmax()], image=(1, 6, 6))
    found = from_weights(CONVOLUTIONS, f"1x6x6,conv,{text},flatten,relu,softmax")
    rows = np.float32(RNG.normal(size=(4, 36)))
    np.testing.assert_array_equal(outputs(found, rows), outputs(expected, rows))
    assert found.image == expected.image


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "1x6x6,conv,flatten,dense",
            r"the step 'dense' is not a layer of these weights \(conv, relu\), and not relu",
        ),
        ("conv,1x6x6,flatten,relu", "the step '1x6x6' is not a layer"),
        ("1x6x6,conv,max_pool9,flatten,relu", "a window of 9 x 9"),
        ("1x6x6,conv,flatten", "the layers leave out relu"),
        ("conv,flatten,relu", r"conv: takes images, .*: say image="),
    ],
)
def test_texts_that_are_no_layers(text: str, message: str) -> None:
    with pytest.raises(SparseNNError, match=message) as raised:
        from_weights(CONVOLUTIONS, text)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("steps", ["other", ["other"]])
def test_names_that_do_not_print_are_escaped(steps: Any) -> None:
    with pytest.raises(UsageError, match=r"\(.*\\x1bfirst\)"):
        from_weights({"\x1bfirst.weight": FIRST}, steps)


KERAS_NAMES = {
    "fc1/kernel:0": FIRST.T,
    "fc1/bias:0": BIAS,
    "bn1/gamma:0": np.linspace(0.5, 2, len(BIAS)),
    "bn1/beta:0": np.linspace(-1, 1, len(BIAS)),
    "bn1/moving_mean:0": np.linspace(0, 3, len(BIAS)),
    "bn1/moving_variance:0": np.linspace(1e-4, 4, len(BIAS)),
    "fc2/kernel:0": SECOND.T,
}


@pytest.mark.parametrize("suffix", [":0", ""])
def test_batch_normalisation_by_the_names_of_keras(suffix: str, rng: np.random.Generator) -> None:
    """It is folded with the epsilon of Keras, which a small variance shows."""
    bag = {name.replace(":0", suffix): array for name, array in KERAS_NAMES.items()}
    network = from_weights(bag, [f"fc1{suffix}", f"bn1{suffix}", ReLU(), f"fc2{suffix}"])
    rows = rng.standard_normal((4, FIRST.shape[1])).astype(np.float32)
    gamma, beta, mean, variance = list(KERAS_NAMES.values())[2:6]
    hidden = (rows @ FIRST.T + BIAS - mean) * gamma / np.sqrt(variance + 1e-3) + beta
    np.testing.assert_allclose(outputs(network, rows), np.maximum(hidden, 0) @ SECOND.T, rtol=1e-4, atol=1e-4)


def test_batch_normalisation_of_keras_asks_for_the_steps() -> None:
    with pytest.raises(InputError, match=r"bn1:0: has a running mean.*layers=\['fc1:0', 'bn1:0', 'fc2:0'\]"):
        from_weights(KERAS_NAMES)


@pytest.mark.parametrize("square", [{"order": "outputs, inputs"}, {}])
def test_square_matrices_lie_as_told_or_as_names_say(square: dict[str, Any]) -> None:
    matrix = np.array([[1.0, 2], [3, 4]], np.float32)
    network = from_weights({"weight" if square else "fc.weight": matrix}, **square)
    np.testing.assert_array_equal(outputs(network, np.eye(2, dtype=np.float32)), matrix.T)


@pytest.mark.parametrize(
    ("bag", "options", "message"),
    [
        ({"0.parametrizations.weight.original": FIRST}, {}, "are computed from it .*; take sparsenn.from_torch"),
        ({"weight": np.ones((2, 2))}, {}, r"ambiguous orientation: the layer 2 × 2; say order='outputs, inputs'"),
        ({"a.weight": FIRST, "b.weight": np.ones((3, 4))}, {}, "no order of dimensions .* a 5 × 7, b 3 × 4"),
        ({"weight1": FIRST, "bias1": np.ones(4)}, {}, "no order of dimensions"),
        ({"conv.weight": np.ones((2, 1, 3, 3))}, {}, r"conv: has weights of shape \(2, 1, 3, 3\), .*layers=\['conv'\]"),
        ({"a.weight": FIRST, "a.running_mean": BIAS}, {}, "a: has a running mean"),
        ({"a.weight": FIRST, "b.weight": SECOND}, {"layers": ["a"]}, "the layers leave out b"),
        ({"a.weight_orig": FIRST, "a.weight_mask": BIAS}, {}, r"a: a mask of shape \(5,\) for a weight of shape"),
        ({"a.weight": np.full((2, 3), np.nan)}, {}, "a: the weights hold NaN"),
        ({"a.weight": FIRST, "a.bias": np.full(5, 0x7F800001, np.int32).view(np.float32)}, {}, "a: .* NaN"),
        ({"a.weight": np.array([["x", "y"]])}, {}, "array a.weight holds no real numbers|array a.weight holds"),
    ],
)
def test_what_does_not_fit_is_told(bag: dict[Any, Any], options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        from_weights(bag, **options)


def test_one_matrix_of_scipy(tmp_path: Path) -> None:
    save_npz(tmp_path / "matrix.npz", csr_array(FIRST))
    with pytest.raises(FileFormatError, match=r"matrix.npz: ambiguous orientation"):
        from_weights(tmp_path / "matrix.npz")
    network = from_weights(tmp_path / "matrix.npz", order="inputs, outputs", sparse_below=2)
    np.testing.assert_array_equal(network[0].weights.to_scipy().toarray(), FIRST)


@pytest.mark.parametrize("suffix", ["pt", "pth", "ckpt", "pkl", "joblib", "bin"])
def test_what_runs_code_is_refused_unread(tmp_path: Path, suffix: str) -> None:
    with pytest.raises(FileFormatError, match="safetensors"):
        from_weights(tmp_path / f"model.{suffix}")


def test_other_names_and_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"\.npz and \.safetensors"):
        from_weights(tmp_path / "weights.doc")
    with pytest.raises(InputError, match="no such file"):
        from_weights(tmp_path / "weights.npz")


@DEVICES
@pytest.mark.parametrize("name", ["lenet300-dns", "lenet300-lobs"])
def test_real_pruned_perceptrons(shared_data: Path, name: str, device: str) -> None:
    images, labels = images_and_labels(shared_data, name)
    network = from_weights(shared_data / "networks" / f"{name}.npz")
    assert {type(layer) for layer in network} == {SparseLinear}
    assert (Session(network, device=device)(images).argmax(axis=1) == labels).sum() == RIGHT[name]


@DEVICES
def test_real_pruned_convolutions(shared_data: Path, device: str) -> None:
    images, labels = images_and_labels(shared_data, "lenet5-dns")
    network = from_weights(
        shared_data / "networks" / "lenet5-dns.npz",
        ["conv1", MaxPool2d(2), "conv2", MaxPool2d(2), Flatten(), "ip1", ReLU(), "ip2"],
        image=(1, 28, 28),
    )
    assert [type(layer) for layer in network.layers[-2:]] == [SparseLinear, SparseLinear]
    assert (Session(network, device=device)(images).argmax(axis=1) == labels).sum() == RIGHT["lenet5-dns"]


def test_npz(tmp_path: Path) -> None:
    arrays = {"weight1": FIRST.astype(np.float64), "bias1": BIAS, "weight2": SECOND.astype(np.float16)}
    np.savez_compressed(tmp_path / "bag.npz", **arrays)
    np.testing.assert_allclose(outputs(from_weights(tmp_path / "bag.npz")), EXPECTED, rtol=1e-2, atol=1e-2)
