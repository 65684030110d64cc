"""Models of images in HDF5: every kind of layer comes back, and what is damaged is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hdf5_changes import Change, attribute, described, put, record, refused_after
from hypothesis import given
from hypothesis import strategies as st
from strategies import activations, mixed_networks, seeds

from sparsenn.errors import ShapeError
from sparsenn.formats import COO, coo_to_csc
from sparsenn.io import read_model, write_model
from sparsenn.io.hdf5.model_layers import LAYER
from sparsenn.layers import AvgPool2d, Conv2d, Flatten, LayerNorm, Linear, MaxPool2d, Slice, Softmax, SparseLinear
from sparsenn.layers.activation import Identity, ReLU, Tanh
from sparsenn.model import Model
from sparsenn.network import Network


def sparse(inputs: int, outputs: int, values: Any) -> SparseLinear:
    """As many entries as values, each a column further."""
    rows, columns = np.arange(len(values)) * 3 % inputs, np.arange(len(values)) % outputs
    weights = coo_to_csc(COO.from_arrays((inputs, outputs), rows, columns, np.asarray(values)))
    return SparseLinear(weights, np.arange(outputs, dtype=np.float32), ReLU(2.0))


def model() -> Model:
    """2 × 9 × 12 images; every kind of layer, with every option that it has."""
    rng = np.random.default_rng(8)
    layers = (
        Conv2d(rng.normal(size=(4, 1, 3, 2)), rng.normal(size=4), Tanh(), (2, 1), (1, 3), (1, 2), groups=2),
        MaxPool2d((2, 3), 2, (1, 0), 0),
        AvgPool2d(2, padding=1, counts_padding=False),
        Conv2d(rng.normal(size=(3, 4, 1, 1)), None, ReLU(1.5)),
        Flatten(),
        sparse(24, 7, rng.normal(size=15).astype(np.float32)),
        sparse(7, 5, np.full(6, 0.25, np.float32)),
        sparse(5, 6, rng.normal(size=4)),
        Linear(rng.normal(size=(6, 3)), 0.5, Identity()),
        LayerNorm([2.0], [-1.0], 1e-3, positions=3),
        Softmax(),
    )
    return Model(Network(layers, (2, 9, 12)), "cross_entropy", True, {"data": "digits"}, "bilinear")


def fields(layer: Any) -> dict[str, Any]:
    """All that a layer holds, in plain arrays; the bias as the vector that it stands for."""
    found = {each.name: getattr(layer, each.name) for each in dataclasses.fields(layer)}
    if "weights" in found:
        found["bias"] = layer.bias_vector()
    if isinstance(layer, SparseLinear):
        weights = found.pop("weights")
        found |= {name: getattr(weights, name) for name in ("shape", "indptr", "indices", "values")}
    return found


def assert_same(found: Network, expected: Network) -> None:
    assert (found.image, found.shapes, len(found)) == (expected.image, expected.shapes, len(expected))
    for one, other in zip(found, expected, strict=True):
        assert type(one) is type(other)
        values, wanted = fields(one), fields(other)
        assert values.keys() == wanted.keys()
        for name, value in wanted.items():
            if isinstance(value, np.ndarray):
                assert values[name].dtype == value.dtype
                np.testing.assert_array_equal(values[name], value)
            else:
                assert values[name] == value


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_model(tmp_path / "model.h5", model())
    return tmp_path / "model.h5"


def test_every_kind_of_layer_is_read_as_written(path: Path) -> None:
    found, expected = read_model(path), model()
    assert_same(found.network, expected.network)
    assert (found.loss, found.classes, found.provenance, found.resize) == (
        "cross_entropy",
        True,
        {"data": "digits"},
        "bilinear",
    )
    first = path.read_bytes()
    write_model(path, found)
    assert path.read_bytes() == first


@given(mixed_networks(), seeds)
def test_round_trip(tmp_path_factory, drawn: Any, seed: int) -> None:
    network = drawn[0] if isinstance(drawn, tuple) else drawn
    path = tmp_path_factory.mktemp("model") / "m.h5"
    write_model(path, Model(network, "mse", False, {"seed": str(seed)}))
    found = read_model(path)
    assert_same(found.network, network)
    assert found.provenance == {"seed": str(seed)}


@st.composite
def image_networks(draw: st.DrawFn) -> Network:
    """A convolution, a pool, a Flatten and a dense layer, of any sizes that fit together."""
    sides = st.integers(1, 3)
    groups = draw(st.integers(1, 3))
    channels, filters = groups * draw(sides), groups * draw(sides)
    kernel, pad, stride, apart = ((draw(sides), draw(sides)) for _ in range(4))
    window = draw(sides), draw(sides)
    pool = draw(st.sampled_from([MaxPool2d, AvgPool2d]))
    rng = np.random.default_rng(draw(seeds))
    weights = rng.normal(size=(filters, channels // groups, *kernel))
    convolution = Conv2d(weights, rng.normal(size=filters), draw(activations()), stride, pad, apart, groups)
    image = channels, draw(st.integers(7, 12)), draw(st.integers(7, 12))
    front = (convolution, pool(window, draw(sides), (window[0] // 2, window[1] // 2)), Flatten())
    try:
        width = Network(front, image).outputs
    except ShapeError:  # the window is larger than what the convolution leaves
        front, width = front[::2], Network(front[::2], image).outputs
    return Network((*front, Linear(rng.normal(size=(width, 2)), None, draw(activations()))), image)


def test_slices_along_each_axis(tmp_path: Path) -> None:
    network = Network((Slice(1, 3, axis=2), Slice(0, 2, axis=1), Slice(1, 2, (2, 2, 1))), (2, 3, 4))
    write_model(tmp_path / "model.h5", Model(network, "mse", False))
    assert_same(read_model(tmp_path / "model.h5").network, network)


@given(image_networks())
def test_round_trip_of_images(tmp_path_factory, network: Network) -> None:
    path = tmp_path_factory.mktemp("model") / "m.h5"
    write_model(path, Model(network, "mse", False, {}, "bilinear"))
    assert_same(read_model(path).network, network)


def set_kinds(*kinds: tuple[bytes, int, int, int]) -> Change:
    """Make the file one of layers without weights, as version 2 has them: kind, inputs, outputs and groups of each."""

    def change(file: h5py.File) -> None:
        table = np.zeros(len(kinds), LAYER)
        table["activation"], table["clip"] = b"identity", np.nan
        for line, (kind, inputs, outputs, groups) in zip(table, kinds, strict=True):
            line["kind"], line["inputs"], line["outputs"], line["groups"] = kind, inputs, outputs, groups
        put("layers", table)(file)

    return change


def add_sources(sources: Any) -> Change:
    return lambda file: file.create_dataset("sources", data=sources)


KEEP = (b"keep", 0, 0, 1)


CHANGES: list[tuple[Change, str]] = [
    (attribute("version", 6), "version 6; this program reads version 1, 2, 3, 4, 5"),
    (described(image=[2, 9]), "no valid image"),
    (described(image=[1 << 20, 1 << 20, 1 << 20]), "no valid image"),
    (described(image=[2, 9, 13]), "layer 6 takes"),
    (described(image=None, resize=None), "layer 1 is a Conv2d: say what images"),
    (described(resize="bicubic"), "unknown way to resize"),
    (put("layers"), "layers is missing"),
    (put("layers", np.zeros(3, [("kind", "S16")])), "must hold records of kind"),
    (record("layers", 1, "kind", b"conv3d"), "layer 1 is of the kind 'conv3d'; known:"),
    (record("layers", 1, "groups", 0), "cannot be cut into 0 groups"),
    (record("layers", 1, "outputs", 1 << 40), "layer 1: outputs"),
    (record("layers", 1, "window", (-3, -2)), "layer 1: window"),
    (record("layers", 1, "stride", (0, 1)), "layer 1: a stride"),
    (record("layers", 1, "dilation", (0, 0)), "layer 1: a dilation"),
    (record("layers", 1, "clip", 3.0), "layer 1: tanh takes no parameter"),
    (record("layers", 2, "padding", (2, 2)), "layer 2: a padding"),
    (record("layers", 6, "outputs", 8), "layer6/offsets has 8 elements; 9 are needed"),
    (record("layers", 6, "entries", 1 << 60), "layer6/indices has 15 elements"),
    (put("layer1/weights"), "layer1/weights is missing"),
    (put("layer1/weights", np.full((4, 6), np.nan, np.float32)), "layer 1: the weights hold NaN"),
    (put("layer1/bias", np.ones(5, np.float32)), "layer1/bias has 5 elements; 4 are needed"),
    (put("layer6/offsets", np.arange(8)[::-1].copy()), "layer 6: indptr must rise"),
    (put("layer6/indices", np.full(15, 24, np.uint16)), "layer 6: column 0, entry 0: index 24 is outside"),
    (put("layer6/indices", np.zeros(15, np.uint16)), "layer 6: column 0, entry 1: index 0 occurs twice"),
    (put("layer6/values", np.full(15, np.nan, np.float32)), "layer 6: entry 0: the value nan"),
    (put("layer6/values", h5py.ExternalLink("other.h5", "/x")), "links are not followed"),
    (set_kinds(KEEP, (b"recall", 2, 0, 1)), "layer 2 recalls 2 of 1 values"),
    (set_kinds((b"recall", 0, 0, 1)), "layer 1 recalls 0 of 0 values"),
    (set_kinds(KEEP, (b"add", 0, 0, 3)), "layer 2 reads 2 of 1 values that were stored"),
    (set_kinds((b"add", 0, 0, 1)), "layer 1: an Add reads two or more"),
    (set_kinds(KEEP, KEEP), "layers holds none that computes anything"),
    (add_sources(np.zeros(3, np.int64)), "sources has 3 elements; 11 are needed"),
    (add_sources(np.arange(1, 12)), "layer 1 reads layer 1"),
    (add_sources(np.arange(-1, 10)), "layer 1: a Conv2d reads one"),
]


@pytest.mark.parametrize(("change", "message"), CHANGES)
def test_models_that_are_none(path: Path, change: Change, message: str) -> None:
    refused_after(change, path, read_model, message)
