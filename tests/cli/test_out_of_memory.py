"""`sparsenn predict` where a GPU's memory does not suffice: batches are cut, as a note says, or one line says why."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Run, Spawn, ended
from idx_files import write_idx
from scarce_memory import occupied

from sparsenn.backends.cpu import CPUBackend
from sparsenn.errors import OutOfMemoryError
from sparsenn.io import write_model
from sparsenn.layers import AvgPool2d, Conv2d, Flatten, ReLU
from sparsenn.model import Model
from sparsenn.network import Network

MIB = 1 << 20
SIDE, FILTERS, IMAGES = 256, 16, 24
"""An image takes 256 KiB on the device, and 4 MiB behind the convolution."""

NOT_ONE = (
    "there is not enough memory on the device for 1 rows; not a single row fits: free memory on the device, or use "
    "device cpu"
)


@pytest.fixture
def arguments(tmp_path: Path) -> tuple[object, ...]:
    """What runs a model of one convolution on some images."""
    rng = np.random.default_rng(51)
    layers = (Conv2d(rng.integers(-2, 3, (FILTERS, 1, 3, 3)), None, ReLU()), AvgPool2d(SIDE - 2), Flatten())
    model, pixels = tmp_path / "model.h5", tmp_path / "images.idx"
    write_model(model, Model(Network(layers, (1, SIDE, SIDE)), "cross_entropy", classes=True))
    write_idx(pixels, rng.integers(0, 256, (IMAGES, SIDE, SIDE)).astype(np.uint8))
    return "predict", model, pixels, "--device", "cuda"


@pytest.fixture
def fitting(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Have `--device cuda` compute on the CPU, with memory for some images at a time."""

    def limit(most: int) -> None:
        class Small(CPUBackend):
            def place(self, rows: Any, keep_half: bool = False) -> Any:
                if rows.shape[0] > most:
                    raise OutOfMemoryError(NOT_ONE, most)
                return super().place(rows, keep_half)

        monkeypatch.setattr("sparsenn.backends.selection.backend_for", lambda device: Small())

    return limit


def test_a_batch_that_is_cut_is_noted(run: Run, fitting: Callable[[int], None], arguments: tuple[object, ...]) -> None:
    fitting(5)
    done = run(*arguments, "--memory-limit", "100G")
    assert f"There was not enough memory for {IMAGES} samples at a time; 5 were used." in done.stdout


def test_where_not_one_image_fits_it_is_one_line(
    run: Run, fitting: Callable[[int], None], arguments: tuple[object, ...]
) -> None:
    fitting(0)
    done = run(*arguments, "--memory-limit", "100G", code=2)
    assert not done.stdout
    check_message(done.stderr)


def check_message(said: str) -> None:
    assert said.startswith("error: ")
    assert said.endswith(f"{NOT_ONE}\n")
    assert said.count("\n") == 1


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.parametrize("mebibytes", [32, 2])
def test_on_a_gpu_both_happen_too(spawn: Spawn, arguments: tuple[object, ...], mebibytes: int) -> None:
    """CuPy itself keeps to the limit: 32 MiB hold some images at a time, 2 MiB not one."""
    limit = {"CUPY_GPU_MEMORY_LIMIT": str(mebibytes * MIB)}
    code, out, err = ended(spawn(*arguments, "--memory-limit", "100G", env=limit))
    if mebibytes == 32:
        assert (code, err) == (0, "")
        assert f"There was not enough memory for {IMAGES} samples at a time; " in out
    else:
        assert (code, out) == (2, "")
        check_message(err)


@pytest.mark.gpu
@pytest.mark.alone
def test_a_gpu_that_another_program_has_filled(spawn: Spawn, arguments: tuple[object, ...]) -> None:
    with occupied(import_module("cupy"), 8 * MIB):
        code, out, err = ended(spawn(*arguments))
        chosen, found, noted = ended(spawn(*arguments[:-1], "auto"))
    assert (code, out) == (2, "")
    assert err.startswith("error: cuda:0 cannot be used (")
    assert err.endswith("; see in nvidia-smi what occupies it, or use device cpu\n")
    assert err.count("\n") == 1
    assert (chosen, noted) == (0, "")
    assert " on cpu (" in " ".join(found.split())
