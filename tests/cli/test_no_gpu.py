"""Verbs where CuPy is installed and there is not a GPU: one line that says what was found, or the CPU."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from command_line import Spawn, ended

from sparsenn.io import write_model
from sparsenn.layers import Linear, ReLU
from sparsenn.model import Model
from sparsenn.network import Network

CUPY = """
import warnings
from types import SimpleNamespace


class CUDARuntimeError(RuntimeError):
    status = 35


def getDeviceCount():
    raise CUDARuntimeError("cudaErrorInsufficientDriver: CUDA driver version is insufficient for CUDA runtime version")


warnings.warn("CuPy may not function correctly because multiple CuPy packages are installed")
runtime = SimpleNamespace(
    CUDARuntimeError=CUDARuntimeError,
    getDeviceCount=getDeviceCount,
    runtimeGetVersion=lambda: 13020,
    driverGetVersion=lambda: 0,
)
cuda = SimpleNamespace(runtime=runtime)
"""
"""As CuPy answers where there is no driver, with the warning that it gives when two packages of it are installed."""

NO_DRIVER = (
    "error: CUDA finds no NVIDIA driver: install one, or give the container access to the GPU, or use device cpu\n"
)


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, str]:
    """An environment in which that CuPy is imported, and each warning shown."""
    folder = tmp_path / "packages"
    folder.mkdir()
    (folder / "cupy.py").write_text(CUPY)
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(paths), "PYTHONWARNINGS": "always::UserWarning"}


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """40 rows of 3 inputs and 2 targets."""
    rng = np.random.default_rng(41)
    path = tmp_path / "table.npz"
    np.savez(path, inputs=rng.uniform(-1, 1, (40, 3)), targets=rng.uniform(-1, 1, (40, 2)))
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model of such rows."""
    rng = np.random.default_rng(42)
    layers = (Linear(rng.normal(size=(3, 5)), None, ReLU()), Linear(rng.normal(size=(5, 2)), None, ReLU()))
    path = tmp_path / "model.h5"
    write_model(path, Model(Network(layers), "mse", classes=False))
    return path


@pytest.mark.parametrize(
    "arguments",
    [
        ("infer", "{problem}"),
        ("predict", "{model}", "{table}"),
        ("kernels", "ladder", "spmspm", "--dataset", "{problem}"),
        ("kernels", "ladder", "gemm"),
        ("kernels", "roofline"),
        ("kernels", "roofline", "conv2d"),
        ("train", "{table}", "--hidden", "4", "--epochs", "1", "--output", "{table}.h5"),
    ],
    ids=" ".join,
)
def test_a_gpu_that_is_asked_for_is_one_line_and_exit_code_2(
    spawn: Spawn, settings: dict[str, str], problem: Path, model: Path, table: Path, arguments: tuple[str, ...]
) -> None:
    named = {"problem": problem, "model": model, "table": table}
    words = [part.format(**named) for part in arguments]
    assert ended(spawn(*words, "--device", "cuda", env=settings)) == (2, "", NO_DRIVER)
    assert not Path(f"{table}.h5").exists()


def test_auto_takes_the_cpu_and_says_so_in_the_plan(
    spawn: Spawn, settings: dict[str, str], problem: Path, model: Path, table: Path
) -> None:
    code, out, err = ended(spawn("infer", problem, "--json", "-", env=settings))
    found = json.loads(out)
    assert (code, found["verified"]) == (0, True)
    assert found["plan"]["device"].startswith("cpu")
    assert "error" not in err
    assert "warning" not in err
    code, _, err = ended(spawn("predict", model, table, env=settings))
    assert (code, err) == (0, "")


def test_a_precision_that_the_cpu_lacks_is_refused_by_its_name(
    spawn: Spawn, settings: dict[str, str], problem: Path
) -> None:
    refusal = "error: sparse layers are not multiplied in tf32 on cpu; leave it out\n"
    assert ended(spawn("infer", problem, "--precision", "tf32", env=settings)) == (2, "", refusal)


def test_kernels_are_listed_without_cupy(spawn: Spawn, settings: dict[str, str]) -> None:
    code, out, err = ended(spawn("kernels", env=settings))
    assert (code, "cuda" in out, err) == (0, True, "")


@pytest.mark.gpu
def test_a_gpu_that_is_hidden(spawn: Spawn, problem: Path) -> None:
    code, out, err = ended(spawn("infer", problem, "--device", "cuda", env={"CUDA_VISIBLE_DEVICES": ""}))
    assert (code, out) == (2, "")
    assert err.startswith("error: CUDA finds no NVIDIA GPU (cudaErrorNoDevice")
    assert err.endswith("; CUDA_VISIBLE_DEVICES='' may hide it: unset that, check nvidia-smi, or use device cpu\n")
    assert err.count("\n") == 1
    code, out, err = ended(spawn("infer", problem, env={"CUDA_VISIBLE_DEVICES": ""}))
    assert (code, err) == (0, "")
    assert " on cpu (" in " ".join(out.split())
