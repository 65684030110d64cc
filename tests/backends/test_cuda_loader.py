"""Sources, defines and modules, with a CuPy that only takes notes."""

import sys
from types import SimpleNamespace

import pytest

from sparsenn.backends.cuda import loader
from sparsenn.backends.cuda.loader import COMPILE_OPTIONS, PROGRAMS, Program, module, source_text
from sparsenn.errors import DeviceError

SOURCE = "spmspm/01_naive.cu"


class CompileError(Exception):
    pass


class FakeCuPy:
    """Records what is compiled; a source that holds `poison` does not compile."""

    def __init__(self, poison="\0"):
        self.compiled = []
        self.poison = poison
        self.device = 0
        runtime = SimpleNamespace(getDevice=lambda: self.device)
        compiler = SimpleNamespace(CompileException=CompileError)
        self.cuda = SimpleNamespace(
            runtime=runtime, compiler=compiler, driver=SimpleNamespace(CUDADriverError=RuntimeError)
        )

    def RawModule(self, code, options):  # noqa: N802 - CuPy's name
        def compile_now():
            if self.poison in code:
                raise CompileError("nvrtc: error: invalid value for --gpu-architecture")
            self.compiled.append((code, options))

        return SimpleNamespace(compile=compile_now, get_function=lambda name: (name, options))


def forget():
    loader._module.cache_clear()
    loader._kernel.cache_clear()


@pytest.fixture
def fake(monkeypatch):
    def install(cupy):
        monkeypatch.setitem(sys.modules, "cupy", cupy)
        return cupy

    forget()
    yield install
    forget()


def test_a_module_is_compiled_once_for_each_device_and_set_of_defines(fake):
    cupy = fake(FakeCuPy())
    first = module(SOURCE, {"OUT_INDEX": "index16", "IN_INDEX": "index32"})
    assert module(SOURCE, {"IN_INDEX": "index32", "OUT_INDEX": "index16"}) is first
    assert module(SOURCE, {"IN_INDEX": "index16", "OUT_INDEX": "index16"}) is not first
    cupy.device = 1
    assert module(SOURCE, {"IN_INDEX": "index32", "OUT_INDEX": "index16"}) is not first
    assert [options for _, options in cupy.compiled] == [
        (*COMPILE_OPTIONS, "-DIN_INDEX=index32", "-DOUT_INDEX=index16"),
        (*COMPILE_OPTIONS, "-DIN_INDEX=index16", "-DOUT_INDEX=index16"),
        (*COMPILE_OPTIONS, "-DIN_INDEX=index32", "-DOUT_INDEX=index16"),
    ]


def test_headers_stand_in_the_text_once_and_lines_keep_their_names():
    text = source_text("spmspm/08_tile.cu")
    assert "#include" not in text
    assert "#pragma once" not in text
    assert text.count("constexpr int WARP = 32;") == 1
    text = source_text(SOURCE)
    assert text.count("constexpr int WARP = 32;") == text.count("struct Layer") == 1
    original = (loader.files("sparsenn.backends.cuda") / "kernels" / SOURCE).read_text().splitlines()
    number = int(text.rpartition("#line ")[2].split()[0])
    assert text.splitlines()[text.splitlines().index(f'#line {number} "{SOURCE}"') + 1] == original[number - 1]


def test_a_source_that_does_not_compile_is_a_device_error(fake):
    fake(FakeCuPy(poison="naive"))
    with pytest.raises(DeviceError, match=r"01_naive.cu \(A=1\).*gpu-architecture.*sparsenn\[cuda12\].*--device cpu"):
        module(SOURCE, {"A": 1})


def test_only_making_a_module_counts_as_compiling(fake, monkeypatch):
    cupy = fake(FakeCuPy(poison="naive"))
    moments = iter(range(0, 100, 7))
    monkeypatch.setattr(loader.time, "perf_counter", lambda: next(moments))
    before = loader.compile_seconds()
    with pytest.raises(DeviceError):
        module(SOURCE, {"A": 1})
    assert loader.compile_seconds() == before + 7
    cupy.poison = "\0"
    for _ in range(3):
        module(SOURCE, {"A": 1})
    assert loader.compile_seconds() == before + 14


def test_a_program_takes_its_first_choices_unless_told(fake):
    fake(FakeCuPy())
    program = Program(SOURCE, {"A": (7, 8), "B": ("x",)})
    assert list(program.builds()) == [{"A": 7, "B": "x"}, {"A": 8, "B": "x"}]
    assert program.kernel("spmspm") == ("spmspm", (*COMPILE_OPTIONS, "-DA=7", "-DB=x"))
    assert program.kernel("spmspm", A=8) == ("spmspm", (*COMPILE_OPTIONS, "-DA=8", "-DB=x"))
    with pytest.raises(AssertionError, match="A=9 was never compiled in the tests"):
        program.kernel("spmspm", A=9)
    assert program not in PROGRAMS


def test_warnings_of_cupy_about_itself_are_dropped(fake, tmp_path, monkeypatch):
    (tmp_path / "cupy.py").write_text(
        "import warnings\nwarnings.warn('two CuPy packages are installed')\nhere = True\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    assert loader.cupy().here
    del sys.modules["cupy"]  # the one that was there before, if any, comes back


def test_cupy_is_imported_once_and_again_where_it_has_changed(fake, monkeypatch):
    asked = []
    monkeypatch.setattr(loader, "import_module", lambda name: asked.append(name) or sys.modules[name])
    for cupy in (FakeCuPy(), FakeCuPy()):
        fake(cupy)
        asked.clear()
        assert loader.cupy() is loader.cupy() is cupy
        assert asked == ["cupy"]
    monkeypatch.setitem(sys.modules, "cupy", None)
    loader.cupy()
    assert asked == ["cupy"] * 2
