from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest
from idx_files import write_idx

from sparsenn.backends import oracle as reference
from sparsenn.datasets import digit_inputs, generate, mnist, radixnet
from sparsenn.errors import FileFormatError, UsageError

# The function of the same name hides the module as an attribute of the package.
module = importlib.import_module("sparsenn.datasets.truth")


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SPARSENN_MNIST", raising=False)
    monkeypatch.setenv("SPARSENN_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def five_images(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder whose training images are five random ones, and are taken for all there are."""
    images = np.random.default_rng(0).integers(0, 256, (5, 28, 28)).astype(np.uint8)
    monkeypatch.setattr(mnist, "TRAINING_SHAPE", images.shape)
    write_idx(tmp_path / "train-images-idx3-ubyte.gz", images)
    return tmp_path


def test_digits_with_truth() -> None:
    dataset = generate(1024, 14, images=300, seed=5)
    network, inputs = radixnet(1024, 14, seed=5, bias=-0.3), digit_inputs(1024, 300, seed=5)
    assert dataset.name == "radixnet-1024x14"
    np.testing.assert_array_equal(dataset.inputs.indices, inputs.indices)
    for made, wanted in zip(dataset.network, network, strict=True):
        np.testing.assert_array_equal(made.weights.indices, wanted.weights.indices)
        assert made.bias == -0.3
    assert dataset.truth.dtype == np.int64
    np.testing.assert_array_equal(dataset.truth, reference.categories(network, inputs))
    assert 0 < dataset.truth.size < 300
    assert dataset.provenance["truth"].startswith(f"{dataset.truth.size} categories, computed")
    assert "seed 5" in dataset.provenance["inputs"]


def test_truth_in_batches_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = generate(256, 6, images=100, bias=-0.2)
    calls: list[tuple[str, int, int]] = []
    monkeypatch.setattr(module, "TRUTH_BATCH", 33 * 256)
    batched = generate(256, 6, images=100, bias=-0.2, progress=lambda *call: calls.append(call))
    assert 0 < whole.truth.size < 100
    np.testing.assert_array_equal(batched.truth, whole.truth)
    done = [call[1] for call in calls if call[0] == "compute truth"]
    assert done == sorted(set(done))
    assert {call[2] for call in calls if call[0] == "compute truth"} == {done[-1]}
    assert {33 * 6, 66 * 6, 99 * 6, 100 * 6} <= set(done)


def test_no_truth_beyond_the_limit_and_the_provenance_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    work = 100 * 6 * 256 * 32
    monkeypatch.setattr(module, "TRUTH_LIMIT", work)
    assert generate(256, 6, images=100, bias=-0.2).truth is not None
    monkeypatch.setattr(module, "TRUTH_LIMIT", work - 1)
    dataset = generate(256, 6, images=100, bias=-0.2)
    assert dataset.truth is None
    assert dataset.provenance["truth"].startswith("not computed: 4.9e+06 multiply-adds")


def test_mnist_is_taken_where_it_is_at_hand(five_images: Path) -> None:
    assert "digits" in generate(900, 2, kronecker=225, images=5, bias=0.0).provenance["inputs"]
    dataset = generate(900, 2, kronecker=225, images=4, bias=0.0, mnist=five_images)
    assert dataset.provenance["inputs"].startswith("MNIST training images")
    assert "SHA-256" in dataset.provenance["inputs"]
    assert dataset.inputs.shape == (4, 900)
    small = generate(256, 2, images=5, bias=0.0, mnist=five_images)
    assert "digits" in small.provenance["inputs"], "16 × 16 is smaller than the images themselves"
    chosen = generate(900, 2, kronecker=225, images=5, bias=0.0, mnist=five_images, inputs="digits")
    assert "digits" in chosen.provenance["inputs"]


def test_images_that_are_not_mnist_are_refused_at_the_official_sizes(five_images: Path) -> None:
    with pytest.raises(FileFormatError, match=r"instead of 6,374,505: these are not the MNIST training images"):
        generate(1024, 1, images=5, mnist=five_images)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"neurons": 256}, "sets no bias for 256 neurons"),
        ({"inputs": "mnits"}, "unknown kind of inputs 'mnits'; did you mean 'mnist'"),
        ({"inputs": "mnist"}, "MNIST is not available"),
        ({"neurons": 2048, "bias": 0.0}, "2048 neurons are not a square"),
        ({"images": 0}, "0 images"),
        ({"radices": (3,)}, "base nodes"),
    ],
)
def test_what_does_not_fit_is_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        generate(**{"neurons": 1024, "layers": 2, **arguments})  # type: ignore[arg-type]
