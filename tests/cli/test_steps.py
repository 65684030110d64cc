"""Weights alone wherever the program takes a model, with --steps to say what is applied."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Refused, Run
from real_networks import RIGHT

from sparsenn import Conv2d, Flatten, Linear, MaxPool2d, Session, from_weights, read_model

STEPS = "1x6x6,conv,max_pool2,relu,flatten,fc,softmax"


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    rng = np.random.default_rng(1)
    conv, fc = rng.normal(size=(3, 1, 3, 3)), rng.normal(size=(2, 12))
    np.savez(tmp_path / "bag.npz", conv_weight=conv, conv_bias=np.ones(3), fc_weight=fc, fc_bias=np.ones(2))
    return tmp_path / "bag.npz"


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    np.save(tmp_path / "rows.npy", np.random.default_rng(2).normal(size=(5, 36)).astype(np.float32))
    return tmp_path / "rows.npy"


def test_every_verb_takes_steps(run: Run, weights: Path, rows: Path, tmp_path: Path) -> None:
    done = run("info", weights, "--steps", STEPS)
    for fact in ("convolution 3 × 3", "max-pool 2 × 2", f"applied as {STEPS}"):
        assert fact in done.stdout
    done = run("convert", weights, tmp_path / "model.h5", "--steps", STEPS)
    done = run("predict", tmp_path / "model.h5", rows, "--output", tmp_path / "out.npz", "--device", "cpu")
    expected = Session(from_weights(weights, STEPS), device="cpu")(np.load(rows))
    np.testing.assert_array_equal(np.load(tmp_path / "out.npz")["outputs"], expected)
    assert [type(layer) for layer in read_model(tmp_path / "model.h5").network][:4] == [
        *(Conv2d, MaxPool2d, Flatten, Linear)
    ]
    given: tuple[Any, ...] = ("--rows", 2, "--seconds", 0.01, "--against", "none", "--device", "cpu", "--json", "-")
    done = run("benchmark", weights, "--steps", STEPS, *given)
    assert json.loads(done.stdout)


def test_steps_that_do_not_go(run: Run, refused: Refused, weights: Path, rows: Path, tmp_path: Path) -> None:
    model = tmp_path / "model.h5"
    run("convert", weights, model, "--steps", STEPS)
    for arguments, why in (
        (("info", weights), r"(on the command line --steps)"),
        (("info", weights, "--steps", "conv,fc"), "bag.npz: conv: takes images, but their shape is not given"),
        (("predict", weights, rows), r"(on the command line --steps)"),
        (("info", weights, "--steps", f"{STEPS},glu"), "the step 'glu' is not a layer of these weights"),
        (
            ("info", model, "--steps", STEPS),
            "steps (--steps) apply only to files of weights alone, .safetensors and .npz files",
        ),
        (("info", "radixnet-1024x120", "--steps", STEPS), "--plan, --steps, --shape and --prune go with a model"),
        (
            ("convert", "radixnet-1024x120", tmp_path / "x.h5", "--steps", STEPS),
            "converted by sparsenn challenge convert",
        ),
    ):
        refused(arguments, why)


def test_a_real_pruned_network(run: Run, shared_data: Path, tmp_path: Path) -> None:
    steps = "1x28x28,conv1,max_pool2,conv2,max_pool2,flatten,ip1,relu,ip2"
    path, images = shared_data / "networks" / "lenet5-dns.npz", shared_data / "mnist" / "t10k-images-idx3-ubyte.gz"
    model = tmp_path / "model.h5"
    run("convert", path, model, "--steps", steps)
    run("predict", model, images, "--factor", "1/256", "--device", "cpu", "--json", tmp_path / "found.json")
    assert json.loads((tmp_path / "found.json").read_text())["accuracy"] > RIGHT["lenet5-dns"] / 10_000 - 0.01
