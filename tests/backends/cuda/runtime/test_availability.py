"""What is said when CUDA cannot be used, each time with the remedy."""

import re
import sys
from contextlib import nullcontext
from dataclasses import replace
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

import pytest

from sparsenn import backends
from sparsenn.backends import cuda
from sparsenn.backends.cuda.runtime import availability
from sparsenn.backends.cuda.runtime.memory import within_memory
from sparsenn.backends.machine import MACHINES
from sparsenn.errors import DeviceError, OutOfMemoryError


class CUDARuntimeError(RuntimeError):
    def __init__(self, status, text):
        self.status = status
        super().__init__(text)


class CuPyOutOfMemoryError(MemoryError):
    pass


def fake_cupy(count=1, capability="90", free=10**9, made_for=13020, driver=13000, compiler=(13, 2)):
    """CuPy as far as it is asked before anything is computed; what is an exception is raised."""

    def answering(answer):
        def ask(*_):
            if isinstance(answer, Exception):
                raise answer
            return answer

        return ask

    runtime = SimpleNamespace(
        CUDARuntimeError=CUDARuntimeError,
        getDeviceCount=answering(count),
        runtimeGetVersion=answering(made_for),
        driverGetVersion=answering(driver),
        memGetInfo=answering(free if isinstance(free, Exception) else (free, 2 * free)),
    )
    pool = SimpleNamespace(
        free_bytes=answering(0), used_bytes=answering(0), get_limit=answering(0), free_all_blocks=answering(None)
    )
    return SimpleNamespace(
        __spec__=ModuleSpec("cupy", None),
        cuda=SimpleNamespace(
            runtime=runtime,
            nvrtc=SimpleNamespace(getVersion=answering(compiler)),
            Device=lambda index: nullcontext(SimpleNamespace(compute_capability=capability)),
            memory=SimpleNamespace(OutOfMemoryError=CuPyOutOfMemoryError),
        ),
        get_default_memory_pool=lambda: pool,
    )


TOO_OLD = CUDARuntimeError(35, "cudaErrorInsufficientDriver: CUDA driver version is insufficient")
NO_DEVICE = CUDARuntimeError(100, "cudaErrorNoDevice: no CUDA-capable device is detected")
MISMATCH = CUDARuntimeError(803, "cudaErrorSystemDriverMismatch: system has unsupported display driver")
FULL = CUDARuntimeError(2, "cudaErrorMemoryAllocation: out of memory")
NO_NVRTC = RuntimeError('Failure finding "libnvrtc.so.13":\n No such file: libnvrtc.so.13\n')

EITHER = (
    "install cupy-cuda13x[ctk] for CUDA 13 (driver 580 or newer) or cupy-cuda12x[ctk] for CUDA 12 (driver 525 or newer)"
)


@pytest.fixture(autouse=True)
def settings(monkeypatch):
    """No setting and no package of the machine that the tests run on."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    install(monkeypatch)


def install(monkeypatch, *packages):
    """Make pip's records name these packages, beside others."""
    found = [SimpleNamespace(metadata={"Name": name}) for name in ("numpy", None, "Cupyx-Extra", *packages)]
    monkeypatch.setattr(availability, "distributions", lambda: found)


def refusal(device="cuda"):
    """Return what is said of a device, which is one line and ends alike, and see that `auto` does without it."""
    with pytest.raises(DeviceError) as caught:
        backends.backend_for(device)
    assert backends.backend_for("auto").device == "cpu"
    said = str(caught.value)
    assert said.endswith(", or use device cpu")
    assert said.splitlines() == [said]
    return said.removesuffix(", or use device cpu")


@pytest.mark.parametrize(
    ("cupy", "message"),
    [
        (fake_cupy(count=0), "CUDA finds no NVIDIA GPU; check nvidia-smi"),
        (fake_cupy(count=NO_DEVICE), f"CUDA finds no NVIDIA GPU ({NO_DEVICE}); check nvidia-smi"),
        (fake_cupy(count=MISMATCH), f"CUDA cannot be started ({MISMATCH}); check nvidia-smi"),
        (
            fake_cupy(count=TOO_OLD, driver=0),
            "CUDA finds no NVIDIA driver: install one, or give the container access to the GPU",
        ),
        (
            fake_cupy(count=TOO_OLD, driver=12040),
            "the installed CuPy is made for CUDA 13.2, the driver only for CUDA up to 12.4: install cupy-cuda12x[ctk] "
            "for CUDA 12 (driver 525 or newer), or update the driver to 580 or newer",
        ),
        (
            fake_cupy(count=TOO_OLD, driver=11080),
            "the installed CuPy is made for CUDA 13.2, the driver only for CUDA up to 11.8: "
            "update the driver to 580 or newer",
        ),
        (
            fake_cupy(count=TOO_OLD, made_for=12090, driver=11080),
            "the installed CuPy is made for CUDA 12.9, the driver only for CUDA up to 11.8: "
            "update the driver to 525 or newer",
        ),
        (
            fake_cupy(count=TOO_OLD, made_for=14010, driver=13000),
            "the installed CuPy is made for CUDA 14.1, the driver only for CUDA up to 13.0: install cupy-cuda13x[ctk] "
            "for CUDA 13 (driver 580 or newer), or update the driver",
        ),
        (
            fake_cupy(capability="75"),
            "cuda:0 has compute capability 7.5; the kernels need 8.0 or newer; choose another GPU",
        ),
        (fake_cupy(free=FULL), f"cuda:0 cannot be used ({FULL}); see in nvidia-smi what occupies it"),
        (
            fake_cupy(compiler=NO_NVRTC),
            'CuPy cannot load CUDA\'s compiler NVRTC (Failure finding "libnvrtc.so.13": No such file: '
            "libnvrtc.so.13): install the CUDA Toolkit",
        ),
    ],
)
def test_a_device_that_cannot_be_used_is_refused_with_the_remedy(monkeypatch, cupy, message):
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    assert refusal() == message


@pytest.mark.parametrize(
    ("count", "device", "there"), [(1, "cuda:1", "only cuda:0"), (4, "cuda:7", "cuda:0 to cuda:3")]
)
def test_a_device_beyond_the_last_is_refused(monkeypatch, count, device, there):
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy(count=count))
    with pytest.raises(DeviceError) as caught:
        backends.backend_for(device)
    assert str(caught.value) == (
        f"there is no device {device}: this machine has {there}; choose one of them, or use device cpu"
    )


@pytest.mark.parametrize("visible", ["", "-1", "1"])
def test_a_setting_that_may_hide_gpus_is_named(monkeypatch, visible):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    hint = f"; CUDA_VISIBLE_DEVICES={visible!r} may hide it: unset that, "
    for count in (0, NO_DEVICE):
        monkeypatch.setitem(sys.modules, "cupy", fake_cupy(count=count))
        assert f"{hint}check nvidia-smi" in refusal()
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy(count=1))
    with pytest.raises(DeviceError, match=re.escape(f"only cuda:0{hint}choose one of them")):
        backends.backend_for("cuda:1")


@pytest.mark.parametrize("packages", [("cupy-cuda13x",), ("cupy-cuda12x", "CuPy-CUDA13x"), ("cupy",)], ids=" ".join)
def test_what_pip_takes_for_installed_is_to_be_removed_first(monkeypatch, packages):
    install(monkeypatch, *packages)
    removal = f"pip uninstall {' '.join(packages).lower()}, then "
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy(count=TOO_OLD, driver=12040))
    assert f"12.4: {removal}install cupy-cuda12x[ctk] for CUDA 12" in refusal()
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert refusal().endswith(f": {removal}{EITHER}")


@pytest.mark.parametrize(
    ("made_for", "packages", "remedy"),
    [
        (13020, ("cupy-cuda13x",), "pip install -U 'cupy-cuda13x[ctk]', or install the CUDA Toolkit"),
        (12090, ("cupy-cuda12x", "cupy-cuda13x"), "pip install -U 'cupy-cuda12x[ctk]', or install the CUDA Toolkit"),
        (13020, ("cupy",), "install the CUDA Toolkit"),
    ],
)
def test_the_compiler_comes_with_an_extra_of_the_package_in_use(monkeypatch, made_for, packages, remedy):
    install(monkeypatch, *packages)
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy(compiler=NO_NVRTC, made_for=made_for))
    assert refusal().endswith(f"): {remedy}")


BANNER = """
try:
    raise ImportError("libcore.so: cannot open shared object file")
except ImportError as error:
    raise ImportError("=====\\nFailed to import CuPy.\\n\\nOriginal error:\\n  ...\\n=====") from error
"""


@pytest.mark.parametrize(
    ("file", "text", "reason"),
    [
        ("cupy/__init__.py", BANNER, "libcore.so: cannot open shared object file"),
        ("cupy/__init__.py", "import warnings\nwarnings.warn('two packages')\nimport lost_part", "No module named"),
        ("cupy/__init__.py", "from numpy import lost", "cannot import name 'lost' from 'numpy'"),
        ("cupy/__init__.py", "raise AttributeError('module has no attribute core')", "module has no attribute core"),
        ("cupy/__init__.py", "assert False", "AssertionError"),
        ("cupy/__init__.py", "def (", "invalid syntax"),
        ("cupy.py", "cuda13 = True", "{folder}/cupy.py is not CuPy"),
    ],
)
def test_a_cupy_that_is_broken_is_told_from_one_that_is_missing(monkeypatch, tmp_path, file, text, reason):
    monkeypatch.setitem(sys.modules, "cupy", None)  # to be undone, whatever comes in its place
    del sys.modules["cupy"]
    place = tmp_path / file
    place.parent.mkdir(exist_ok=True)
    place.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    install(monkeypatch, "cupy-cuda13x")
    said = refusal()
    assert said.startswith(f"CuPy cannot be imported ({reason.format(folder=tmp_path)}")
    assert said.endswith(f"): pip uninstall cupy-cuda13x, then {EITHER}")


def test_a_folder_that_is_left_of_cupy_is_not_cupy(monkeypatch, tmp_path):
    left = ModuleType("cupy")  # as Python makes of a folder without __init__.py
    left.__path__, left.__spec__ = [str(tmp_path / "cupy")], ModuleSpec("cupy", None, is_package=True)
    monkeypatch.setitem(sys.modules, "cupy", left)
    assert refusal() == f"CuPy cannot be imported ({tmp_path}/cupy is not CuPy): {EITHER}"


def test_without_cupy_the_extras_are_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    said = refusal()
    assert said.startswith("CuPy cannot be imported (")
    assert said.endswith(f"): {EITHER}")


def test_a_device_that_can_be_used_is_described(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy(count=2))
    monkeypatch.setattr(cuda, "machine_of", lambda index: replace(MACHINES["h200"], name=f"NVIDIA Test {index}"))
    assert backends.backend_for("cuda").description == "cuda:0 (NVIDIA Test 0)"
    assert backends.backend_for("cuda:1").description == "cuda:1 (NVIDIA Test 1)"


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
