"""`sparsenn infer --devices`: several devices give what one gives, and other names are refused in one line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from command_line import Refused, Run

from sparsenn import Linear, Network, write_model
from sparsenn.distributed import devices as devices_module
from sparsenn.io import Dataset
from sparsenn.io.challenge.tsv import read_categories
from sparsenn.io.hdf5.reading import opened
from sparsenn.layers import Identity, ReLU
from sparsenn.model import Model


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch) -> None:
    """What all devices are: three that compute on the CPU."""
    monkeypatch.setattr(devices_module, "gpus", lambda: ("cpu", "cpu", "cpu"))
    monkeypatch.setattr(devices_module, "LEAST_ROWS", 20)
    monkeypatch.setattr(devices_module, "LEAST_SECONDS", 1e-12)


def test_categories_are_verified(run: Run, problem: Path, dataset: Dataset, three: None, tmp_path: Path) -> None:
    done = run("infer", problem, "--devices", "all", "--output", tmp_path / "found.tsv", "--json", "-", "--stats")
    record = json.loads(done.stdout)
    assert record["verified"] is True
    assert record["notes"][-1].startswith("Samples were shared by ")
    assert np.array_equal(read_categories(tmp_path / "found.tsv"), dataset.truth)


def outputs(path: Path) -> list[bytes]:
    """The bytes of the outputs in a file."""
    with opened(path) as source:
        kinds = {"indptr": "<i8", "indices": "<u2", "values": "<f4"}
        return [source.vector(f"outputs/{name}", kind).tobytes() for name, kind in kinds.items()]


def test_outputs_are_those_of_one_device(run: Run, problem: Path, three: None, tmp_path: Path) -> None:
    for option, value in (("--device", "cpu"), ("--devices", "all"), ("--devices", "cpu")):
        target = tmp_path / f"{option}-{value}.h5"
        run("infer", problem, option, value, "--output", target)
    found = [outputs(path) for path in sorted(tmp_path.glob("*.h5"))]
    assert found[0] == found[1] == found[2]


def test_a_model_takes_devices(run: Run, rng: np.random.Generator, three: None, tmp_path: Path) -> None:
    layers = Linear(rng.normal(size=(6, 9)), None, ReLU()), Linear(rng.normal(size=(9, 2)), None, Identity())
    write_model(tmp_path / "m.h5", Model(Network(layers), "mse", False))
    np.save(tmp_path / "rows.npy", rng.normal(size=(300, 6)).astype(np.float32))
    for name, *options in (("one", "--device", "cpu"), ("three", "--devices", "all")):
        given = (tmp_path / "rows.npy", "--reproducible", "--output", tmp_path / f"{name}.npy")
        run("predict", tmp_path / "m.h5", *given, *options)
    assert (tmp_path / "one.npy").read_bytes() == (tmp_path / "three.npy").read_bytes()


def test_a_missing_gpu_by_number_is_refused_with_the_option_to_use(
    run: Run, problem: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    for options in ((), ("--stream",)):
        done = run("infer", problem, "--devices", "0", *options, code=2)
        assert done.stderr.endswith("or use device cpu\n")
    assert run("infer", problem, "--device", "cuda", code=2).stderr.endswith("or use device cpu\n")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--devices", "abacus"), "the devices are 'abacus'; give all, cpu, or GPUs"),
        (("--devices", "0,0"), "one of them twice"),
        (("--devices", "0,cpu"), "give all, cpu, or GPUs"),
        (("--devices", "cpu", "--device", "cpu"), "--device"),
        (("--devices", "cpu", "--kernel", "none"), "unknown cpu kernel for spmspm 'none'"),
    ],
)
def test_what_does_not_go_is_refused(refused: Refused, problem: Path, options: tuple[str, ...], words: str) -> None:
    refused(("infer", problem, *options), words)
