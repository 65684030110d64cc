"""What is said when CUDA cannot be used, each time with the remedy."""

import sys
from types import SimpleNamespace

import pytest

from sparsenn import backends
from sparsenn.backends.cuda.memory import within_memory
from sparsenn.errors import DeviceError, OutOfMemoryError


class CUDARuntimeError(RuntimeError):
    def __init__(self, status, text):
        self.status = status
        super().__init__(text)


class CuPyOutOfMemoryError(MemoryError):
    pass


def fake_cupy(count=1, capability="90", free=10**9):
    def get_device_count():
        if isinstance(count, Exception):
            raise count
        return count

    runtime = SimpleNamespace(
        CUDARuntimeError=CUDARuntimeError,
        getDeviceCount=get_device_count,
        runtimeGetVersion=lambda: 13020,
        getDeviceProperties=lambda index: {"name": b"NVIDIA Test"},
        memGetInfo=lambda: (free, 2 * free),
    )
    pool = SimpleNamespace(free_bytes=lambda: 0, free_all_blocks=lambda: None)
    return SimpleNamespace(
        cuda=SimpleNamespace(
            runtime=runtime,
            Device=lambda index: SimpleNamespace(compute_capability=capability),
            memory=SimpleNamespace(OutOfMemoryError=CuPyOutOfMemoryError),
        ),
        get_default_memory_pool=lambda: pool,
    )


@pytest.mark.parametrize(
    ("cupy", "device", "message"),
    [
        (None, "cuda", r"CuPy cannot be imported.*sparsenn\[cuda13\].*sparsenn\[cuda12\]"),
        (fake_cupy(count=0), "cuda", "CUDA finds no NVIDIA GPU"),
        (fake_cupy(count=CUDARuntimeError(100, "cudaErrorNoDevice")), "cuda", "no NVIDIA GPU .cudaErrorNoDevice"),
        (
            fake_cupy(count=CUDARuntimeError(35, "cudaErrorInsufficientDriver")),
            "cuda",
            r"made for CUDA 13\.2, which the driver is too old for: .*sparsenn\[cuda12\].*update the driver",
        ),
        (fake_cupy(count=1), "cuda:1", "no device cuda:1: this machine has only cuda:0"),
        (fake_cupy(count=4), "cuda:7", "no device cuda:7: this machine has cuda:0 to cuda:3"),
        (fake_cupy(capability="61"), "cuda:0", r"cuda:0 has compute capability 6\.1; the kernels need 7\.0"),
    ],
)
def test_a_device_that_cannot_be_used_is_refused_with_the_remedy(monkeypatch, cupy, device, message):
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    with pytest.raises(DeviceError, match=rf"{message}.*use --device cpu"):
        backends.backend_for(device)


def test_a_device_that_can_be_used_is_described(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy(count=2))
    assert backends.backend_for("cuda").description == "cuda:0 (NVIDIA Test)"
    assert backends.backend_for("cuda:1").description == "cuda:1 (NVIDIA Test)"


@pytest.mark.parametrize(
    ("free", "rows", "fitting", "remedy"),
    [
        (100_000, 1000, 50, "about 50 rows fit: use --batch-size 50"),
        (10**9, 1000, 999, "about 999 rows fit: use --batch-size 999"),
        (1000, 1000, 0, "not a single row fits: free memory on the device"),
        (1000, 0, 0, "the device has 1,000 bytes left; free some"),
    ],
)
@pytest.mark.parametrize("error", [CuPyOutOfMemoryError(), CUDARuntimeError(2, "cudaErrorMemoryAllocation")], ids=repr)
def test_memory_that_does_not_suffice_names_the_batch_that_fits(monkeypatch, free, rows, fitting, remedy, error):
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy(free=free))
    with (
        pytest.raises(OutOfMemoryError, match=rf"the inputs: .*{remedy}") as caught,
        within_memory("the inputs", rows, 1000),
    ):
        raise error
    assert caught.value.fitting == fitting


def test_other_errors_of_the_device_pass(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy())
    with pytest.raises(CUDARuntimeError, match="illegal address"), within_memory("the inputs", 5, 1000):
        raise CUDARuntimeError(700, "illegal address")
