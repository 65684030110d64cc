"""Machine code that the package compiles by itself, with an NVRTC that only takes notes."""

import struct
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from cuda_builds import forget_modules

from sparsenn.backends.cuda.conv.warpgroup import ARCHITECTURE, SOURCE
from sparsenn.backends.cuda.runtime import machine_code
from sparsenn.backends.cuda.runtime.loader import Program
from sparsenn.errors import ResourceError


def elf(text):
    """A file with a header, a text, and a table of one segment at its end, whose last byte is zero."""
    body = text.encode()
    header = b"\x7fELF".ljust(0x20, b"\0") + struct.pack("<QQI", 64 + len(body), 64, 0)
    return (header + struct.pack("<HHHHHH", 64, 56, 1, 0, 0, 0)).ljust(64, b"\0") + body + bytes(56)


class FakeNVRTC:
    """Compiles a source to a file that holds its text; `poison` in it does not compile."""

    class NVRTCError(RuntimeError):
        pass

    def __init__(self, version=(13, 0)):
        self.options = []
        self.left = 0
        self.version = version

    def getVersion(self):  # noqa: N802 - NVRTC's names
        return self.version

    def createProgram(self, text, name, headers, names):  # noqa: N802
        assert not headers
        assert not names
        self.left += 1
        return SimpleNamespace(text=text, name=name)

    def compileProgram(self, program, options):  # noqa: N802
        self.options.append(options)
        if "poison" in program.text:
            raise self.NVRTCError("NVRTC_ERROR_COMPILATION (6)")

    def getProgramLog(self, program):  # noqa: N802
        return f"{program.name}(1): error: poison"

    def getCUBIN(self, program):  # noqa: N802
        return elf(program.text)[:-1]  # as CuPy does

    def destroyProgram(self, program):  # noqa: N802
        self.left -= 1


def cupy_with(nvrtc):
    cuda = SimpleNamespace(
        nvrtc=nvrtc,
        runtime=SimpleNamespace(getDevice=lambda: 0),
        compiler=SimpleNamespace(CompileException=FakeNVRTC.NVRTCError),
        driver=SimpleNamespace(CUDADriverError=FakeNVRTC.NVRTCError),
    )
    return SimpleNamespace(cuda=cuda, RawModule=lambda path: SimpleNamespace(get_function=lambda name: (path, name)))


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARSENN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "kernels"


def made(nvrtc, text="code", options=("-DN=1",), architecture=ARCHITECTURE):
    path = machine_code.machine_code(cupy_with(nvrtc), "conv2d/some.cu", text, options, architecture)
    assert nvrtc.left == 0
    return path


def test_code_is_compiled_once_and_kept(cache):
    nvrtc = FakeNVRTC()
    path = made(nvrtc)
    assert path.parent == cache
    assert path.name.startswith("some-")
    assert path.read_bytes() == elf("code")
    assert nvrtc.options == [("-DN=1", *machine_code.CUPY_OPTIONS, f"-arch={ARCHITECTURE}")]
    assert made(nvrtc) == path
    assert len(nvrtc.options) == 1


@pytest.mark.parametrize("damaged", [b"", b"code", elf("code")[:-9]])
def test_a_damaged_file_is_made_anew(damaged, cache):
    nvrtc = FakeNVRTC()
    path = made(nvrtc)
    path.write_bytes(damaged)
    assert made(nvrtc) == path
    assert path.read_bytes() == elf("code")
    assert len(nvrtc.options) == 2


def test_other_code_goes_to_another_file(cache):
    nvrtc = FakeNVRTC()
    paths = {
        made(nvrtc),
        made(nvrtc, text="other"),
        made(nvrtc, options=("-DN=2",)),
        made(nvrtc, architecture="sm_100a"),
        made(FakeNVRTC((13, 1))),
    }
    assert set(cache.iterdir()) == paths
    assert len(paths) == 5


def test_what_does_not_compile_says_why_and_leaves_nothing(cache):
    with pytest.raises(RuntimeError, match=r"COMPILATION.*some\.cu\(1\): error"):
        made(FakeNVRTC(), text="poison")
    assert not list(cache.parent.rglob("*.cubin"))


def test_without_a_folder_to_write_to_the_file_lives_as_long_as_the_process(tmp_path, monkeypatch):
    in_the_way = tmp_path / "file"
    in_the_way.touch()
    monkeypatch.setenv("SPARSENN_CACHE", str(in_the_way))
    path = made(FakeNVRTC(), text="kept elsewhere")
    assert path.read_bytes() == elf("kept elsewhere")
    assert not path.is_relative_to(tmp_path)


def test_without_any_folder_it_says_what_to_do(monkeypatch):
    def nowhere():
        raise ResourceError("there is no home folder")

    monkeypatch.setattr(machine_code, "cache_folder", nowhere)
    monkeypatch.setattr(machine_code, "_folder_of_process", lambda: Path("/dev/null/none"))
    with pytest.raises(RuntimeError, match="SPARSENN_CACHE"):
        made(FakeNVRTC())


@pytest.fixture
def fresh_modules():
    forget_modules()
    yield
    forget_modules()


def test_the_loader_asks_for_it_where_a_source_needs_an_architecture(cache, monkeypatch, fresh_modules):
    nvrtc = FakeNVRTC()
    monkeypatch.setitem(sys.modules, "cupy", cupy_with(nvrtc))
    path, name = Program(SOURCE, None, ARCHITECTURE).kernel("convolve", N=1)
    assert (Path(path).parent, name) == (cache, "convolve")
    assert nvrtc.options[0][-1] == f"-arch={ARCHITECTURE}"
