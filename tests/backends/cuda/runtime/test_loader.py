"""Sources, defines and modules, with a CuPy that only takes notes."""

import sys
from threading import Barrier, Event
from types import SimpleNamespace

import pytest
from cuda_builds import forget_modules

from sparsenn.backends.cuda.runtime import loader
from sparsenn.backends.cuda.runtime.loader import COMPILE_OPTIONS, PROGRAMS, Program, program, source_text, specialised
from sparsenn.backends.machine import A100, H200
from sparsenn.errors import DeviceError
from sparsenn.runtime.timing import compile_seconds

SOURCE = "studies/spmspm/kernels/01_naive.cu"


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

        def get_function(name):
            return SimpleNamespace(name=name, options=options, shared_size_bytes=1024)

        return SimpleNamespace(compile=compile_now, get_function=get_function)


@pytest.fixture
def fake(monkeypatch):
    def install(cupy):
        monkeypatch.setitem(sys.modules, "cupy", cupy)
        return cupy

    forget_modules()
    yield install
    forget_modules()


def built(defines=None, **options):
    """A kernel of a program whose defines may be anything."""
    return Program(SOURCE, None, **options).kernel("spmspm", **(defines or {}))


def test_a_source_is_compiled_once_for_each_device_and_set_of_defines(fake):
    cupy = fake(FakeCuPy())
    sizes = Program(SOURCE, None)
    first = sizes.kernel("spmspm", OUT_INDEX="index16", IN_INDEX="index32")
    assert sizes.kernel("spmspm", IN_INDEX="index32", OUT_INDEX="index16") is first
    assert sizes.kernel("spmspm", IN_INDEX="index16", OUT_INDEX="index16") is not first
    sizes.kernel("another", IN_INDEX="index32", OUT_INDEX="index16")  # of the same module
    cupy.device = 1
    assert sizes.kernel("spmspm", IN_INDEX="index32", OUT_INDEX="index16") is not first
    assert [options for _, options in cupy.compiled] == [
        (*COMPILE_OPTIONS, "-DIN_INDEX=index32", "-DOUT_INDEX=index16"),
        (*COMPILE_OPTIONS, "-DIN_INDEX=index16", "-DOUT_INDEX=index16"),
        (*COMPILE_OPTIONS, "-DIN_INDEX=index32", "-DOUT_INDEX=index16"),
    ]


def test_a_kernel_may_take_all_shared_memory_of_its_device(fake, monkeypatch):
    cupy = fake(FakeCuPy())
    monkeypatch.setattr(loader, "machine_of", lambda device: (H200, A100)[device])
    whole = Program(SOURCE, None, dynamic_shared=True, carveout=100)
    assert whole.kernel("spmspm").max_dynamic_shared_size_bytes == H200.block_bytes - 1024
    assert whole.kernel("spmspm").preferred_shared_memory_carveout == 100
    cupy.device = 1
    assert whole.kernel("spmspm").max_dynamic_shared_size_bytes == A100.block_bytes - 1024
    for name in ("max_dynamic_shared_size_bytes", "preferred_shared_memory_carveout"):
        assert not hasattr(built(), name)


def test_headers_stand_in_the_text_once_and_lines_keep_their_names():
    text = source_text("studies/spmspm/kernels/08_tile.cu")
    assert "#include" not in text
    assert "#pragma once" not in text
    assert text.count("constexpr int WARP = 32;") == 1
    text = source_text(SOURCE)
    assert text.count("constexpr int WARP = 32;") == text.count("struct Layer") == 1
    original = (loader.files("sparsenn") / SOURCE).read_text().splitlines()
    number = int(text.rpartition("#line ")[2].split()[0])
    assert text.splitlines()[text.splitlines().index(f'#line {number} "{SOURCE}"') + 1] == original[number - 1]


def test_a_source_that_does_not_compile_is_a_device_error(fake):
    fake(FakeCuPy(poison="naive"))
    with pytest.raises(DeviceError, match=r"01_naive.cu \(A=1\).*gpu-architecture.*cupy-cuda12x\[ctk\].*device cpu"):
        built({"A": 1})


def test_only_making_a_module_counts_as_compiling(fake, monkeypatch):
    cupy = fake(FakeCuPy(poison="naive"))
    moments = iter(range(0, 100, 7))
    monkeypatch.setattr(loader.time, "perf_counter", lambda: next(moments))
    before = compile_seconds()
    with pytest.raises(DeviceError):
        built({"A": 1})
    assert compile_seconds() == before + 7
    cupy.poison = "\0"
    for _ in range(3):
        built({"A": 1})
    assert compile_seconds() == before + 14


def test_a_rehearsal_compiles_side_by_side_and_launches_nothing(fake, monkeypatch):
    """Each module waits for the other to be compiled, too."""
    cupy, together, launched = fake(FakeCuPy()), Barrier(2), []
    monkeypatch.setattr(loader, "thread_count", lambda: 2)
    loader._threads.cache_clear()
    make = cupy.RawModule

    def slow(code, options):
        module = make(code, options)
        compile_now, get = module.compile, module.get_function
        module.compile = lambda: (together.wait(20), compile_now())
        module.get_function = lambda name: Launched(get(name), launched)
        return module

    cupy.RawModule = slow
    with loader.rehearsal():
        first, second = built({"A": 1}), built({"A": 2})
        first((1,), (32,), ())
        with loader.rehearsal(False):
            second((1,), (32,), ("lasts",))
        third = built({"A": 1, "B": 1}), built({"A": 2, "B": 1})
    loader.wait_for_modules()
    assert len(cupy.compiled) == 4
    assert all(isinstance(kernel, loader.RehearsedKernel) for kernel in (first, second, *third))
    assert (first.options[-1], second.options[-1]) == ("-DA=1", "-DA=2")
    first((1,), (32,), ("after",))
    assert [arguments for _, _, arguments in launched] == [("lasts",), ("after",)]
    loader._threads.cache_clear()


class Launched(SimpleNamespace):
    def __init__(self, kernel, launches):
        super().__init__(**vars(kernel))
        self.launches = launches

    def __call__(self, *given):
        self.launches.append(given)


def test_long_compilations_are_announced(fake, monkeypatch):
    cupy, said, done = fake(FakeCuPy()), [], Event()
    monkeypatch.setattr(loader, "SILENT_SECONDS", 0.01)
    make = cupy.RawModule

    def slow(code, options):
        module = make(code, options)
        compile_now = module.compile
        module.compile = lambda: done.wait(20) and compile_now()
        return module

    def announce():
        said.append("compiling")
        done.set()

    cupy.RawModule = slow
    monkeypatch.setattr(loader, "announce_compilation", announce)
    built({"A": 1})
    built({"A": 1})
    assert said == ["compiling"]


def test_a_program_takes_its_first_choices_unless_told(fake):
    fake(FakeCuPy())
    choosing = Program(SOURCE, {"A": (7, 8), "B": ("x",)})
    assert list(choosing.builds()) == [{"A": 7, "B": "x"}, {"A": 8, "B": "x"}]
    assert choosing.kernel("spmspm").name == "spmspm"
    assert choosing.kernel("spmspm").options == (*COMPILE_OPTIONS, "-DA=7", "-DB=x")
    assert choosing.kernel("spmspm", A=8).options == (*COMPILE_OPTIONS, "-DA=8", "-DB=x")
    with pytest.raises(AssertionError, match="A=9 was never compiled in the tests"):
        choosing.kernel("spmspm", A=9)
    assert choosing not in PROGRAMS


def test_what_is_declared_is_listed_for_the_tests_that_compile(monkeypatch):
    monkeypatch.setattr(loader, "PROGRAMS", [])
    choosing = program(SOURCE, "sm_90a", carveout=50, A=(7, 8))
    sizes = specialised(SOURCE, dynamic_shared=True)
    assert [choosing, sizes] == loader.PROGRAMS
    assert (choosing.architecture, choosing.carveout, choosing.dynamic_shared) == ("sm_90a", 50, False)
    assert (sizes.architecture, sizes.carveout, sizes.dynamic_shared) == (None, None, True)
    assert not list(sizes.builds())  # they are a problem's own
