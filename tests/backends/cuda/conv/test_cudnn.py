"""Convolutions by cuDNN: what is asked of the library, the kernels beside it in emulation; on a GPU see
`test_on_tensor_cores`."""

from types import SimpleNamespace

import numpy as np
import pytest
from emulation import emulated

from sparsenn.backends.cuda.conv import Geometry, cudnn
from sparsenn.backends.cuda.conv.cudnn import FINISH, SHARED_BYTES, THREADS, TILE, TRANSPOSE, fits, why_no_library
from sparsenn.backends.cuda.runtime.activation import IDENTITY, RELU
from sparsenn.backends.machine import H200
from sparsenn.backends.sizes import parts_of

NAMES = {np.float32: "float", np.float16: "half_bits"}


# ---- Kernels beside the library, emulated --------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(2, 5, 70), (1, 64, 32), (3, 33, 1), (2, 1, 9)], ids=str)
@pytest.mark.parametrize("source", [np.float32, np.float16])
@pytest.mark.parametrize("target", [np.float32, np.float16])
def test_matrices_are_transposed(shape, source, target, rng):
    count, rows, columns = shape
    given = rng.normal(size=shape).astype(source)
    found = np.full((count, columns, rows), np.nan, target)
    run_transpose(
        {"FROM": NAMES[source], "TO": NAMES[target], "FINISH": 0}, given, found, np.zeros(columns, np.float32)
    )
    assert np.array_equal(found, given.swapaxes(1, 2).astype(target))


@pytest.mark.parametrize(("activation", "clip"), [(RELU, np.inf), (RELU, 0.5), (IDENTITY, np.inf)])
@pytest.mark.parametrize("target", [np.float32, np.float16])
def test_bias_and_activation_come_with_the_second_transposition(activation, clip, target, rng):
    sums, bias = rng.normal(size=(2, 35, 7)).astype(np.float32), rng.normal(size=7).astype(np.float32)
    sums[1, 3, 2] = np.nan
    found = np.full((2, 7, 35), 9, target)
    run_transpose({"FROM": "float", "TO": NAMES[target], "FINISH": 1}, sums, found, bias, activation, clip)
    assert np.array_equal(found, finished(sums + bias, activation, clip).swapaxes(1, 2).astype(target), equal_nan=True)


@pytest.mark.parametrize(("activation", "clip"), [(RELU, np.inf), (RELU, 0.5), (IDENTITY, np.inf)])
def test_bias_and_activation_in_place(activation, clip, rng):
    sums, bias = rng.normal(size=(3, 5, 77)).astype(np.float32), rng.normal(size=5).astype(np.float32)
    sums[1, 3, 2] = np.nan
    expected = finished(sums + bias[:, None], activation, clip)
    sizes = map(np.uint32, (sums.size, 77, 5))
    emulated(FINISH, {"THREADS": 64}).launch(3, 64, sums, bias, *sizes, np.int32(activation), np.float32(clip))
    assert np.array_equal(sums, expected, equal_nan=True)


def finished(sums, activation, clip):
    return np.clip(sums, 0, clip) if activation == RELU else sums


def run_transpose(defines, given, found, bias, activation=IDENTITY, clip=np.inf):
    count, rows, columns = given.shape
    tiles = parts_of(rows, TILE), parts_of(columns, TILE)
    sizes = map(np.int32, (rows, columns, *tiles))
    arguments = given, found, bias, *sizes, np.int32(activation), np.float32(clip)
    emulated(TRANSPOSE, defines).launch(count * tiles[0] * tiles[1], THREADS, *arguments)


# ---- What the library is asked for ---------------------------------------------------------------------------------


@pytest.fixture
def there(monkeypatch):
    monkeypatch.setattr(cudnn, "why_no_library", lambda: None)


def test_without_the_frontend_the_kernels_say_so(monkeypatch):
    why_no_library.cache_clear()
    monkeypatch.setattr(cudnn, "find_spec", lambda name: None)
    assert why_no_library() == "the package nvidia-cudnn-frontend is not installed"
    assert "nvidia-cudnn-frontend" in fits("float32", H200, Geometry(8, 9, 9, 8, (3, 3)))
    why_no_library.cache_clear()


def test_a_library_that_does_not_load_is_said_to_be_missing(monkeypatch):
    def fail(name):
        raise OSError("libcudnn.so.9: cannot open")

    why_no_library.cache_clear()
    monkeypatch.setattr(cudnn, "find_spec", lambda name: object())
    monkeypatch.setattr(cudnn, "import_module", fail)
    assert why_no_library() == "cuDNN cannot be loaded (libcudnn.so.9: cannot open)"
    why_no_library.cache_clear()


@pytest.mark.usefixtures("there")
def test_what_fits():
    depthwise = Geometry(32, 28, 28, 32, (3, 3), groups=32)
    for precision in ("float32", "tf32", "float16"):
        assert fits(precision, H200, Geometry(64, 56, 56, 128, (3, 3), (2, 2), (1, 1), (2, 2), 4)) is None
        assert (fits(precision, H200, depthwise) is None) == (precision == "float32")
        assert "would have" in fits(precision, H200, Geometry(1 << 16, 1 << 9, 1 << 9, 4, (3, 3)))


class Operand(SimpleNamespace):
    """A tensor of the frontend, which notes what is set."""

    def __getattr__(self, name):
        return lambda value: setattr(self, name.removeprefix("set_"), value) or self


class Graph:
    """A graph of the frontend that notes what it is asked; plans are found for sums of some types only."""

    def __init__(self, found, **types):
        self.found, self.types, self.tensors, self.convolved, self.refused = found, types, {}, None, None

    def tensor(self, name, **described):
        self.tensors[name] = Operand(**described)
        return self.tensors[name]

    def conv_fprop(self, **described):
        self.convolved, self.sums = described, Operand()
        return self.sums

    def deselect_numeric_notes(self, notes):
        self.refused = notes

    def check_support(self):
        if self.sums.data_type not in self.found:
            raise RuntimeError("no plan")

    def __getattr__(self, name):
        return lambda *arguments: None


@pytest.fixture
def frontend(monkeypatch):
    """Takes the types of sums that plans are found for; returns the graphs that are made."""
    made = []

    def module(found):
        names = (
            "NONDETERMINISTIC",
            "WINOGRAD",
            "FFT",
            "REDUCED_PRECISION_REDUCTION",
            "TENSOR_CORE",
            "DOWN_CONVERT_INPUTS",
        )
        return SimpleNamespace(
            data_type=SimpleNamespace(FLOAT="float", HALF="half"),
            heur_mode=SimpleNamespace(A="a", FALLBACK="fallback"),
            numerical_note=SimpleNamespace(**{name: name for name in names}),
            cudnnGraphNotSupportedError=LookupError,
            create_handle=lambda: "handle",
            pygraph=lambda **types: made.append(Graph(found, **types)) or made[-1],
        )

    def use(*found):
        monkeypatch.setattr(cudnn, "import_module", lambda name: module(found))
        return made

    cudnn._plan.cache_clear()
    cudnn._handle.cache_clear()
    yield use
    cudnn._plan.cache_clear()
    cudnn._handle.cache_clear()


GROUPED = Geometry(12, 9, 7, 8, (3, 2), (2, 1), (1, 0), (1, 2), 2)


def test_a_convolution_in_float32_keeps_the_layout_and_leaves_tensor_cores_out(frontend):
    made = frontend("float")
    assert cudnn._plan("float32", GROUPED, 5, 0) is not None
    (graph,) = made
    assert graph.tensors["images"].dim == [5, 12, 9, 7]
    assert graph.tensors["images"].stride == [756, 63, 7, 1]
    assert graph.tensors["weights"].dim == [8, 6, 3, 2]
    steps = {name: graph.convolved[name] for name in ("padding", "stride", "dilation")}
    assert steps == {"padding": [1, 0], "stride": [2, 1], "dilation": [1, 2]}
    assert graph.sums.dim == [5, 8, GROUPED.output_height, GROUPED.output_width]
    assert {"TENSOR_CORE", "DOWN_CONVERT_INPUTS", "NONDETERMINISTIC"} <= set(graph.refused)


@pytest.mark.parametrize(("precision", "number"), [("tf32", "float"), ("float16", "half")])
def test_other_precisions_have_channels_last(precision, number, frontend):
    made = frontend("float")
    plan = cudnn._plan(precision, GROUPED, 5, 0)
    (graph,) = made
    assert graph.types["io_data_type"] == number
    assert graph.tensors["images"].stride == [756, 1, 84, 12]
    assert graph.tensors["weights"].stride == [36, 1, 12, 6]
    assert graph.sums.data_type == "float"
    assert plan.sums_type is np.float32
    assert "TENSOR_CORE" not in graph.refused


def test_sums_of_halves_are_halves_only_where_there_is_no_other_plan(frontend):
    frontend("half")
    assert cudnn._plan("float16", GROUPED, 5, 0).sums_type is np.float16
    assert cudnn._plan("tf32", GROUPED, 5, 0) is None


def test_channels_of_a_tap_lie_side_by_side(rng):
    weights = rng.normal(size=(4, 5, 3, 2)).astype(np.float32)
    found = cudnn._arranged(np.float16, weights)
    assert found.flags.c_contiguous
    assert np.array_equal(found, weights.transpose(0, 2, 3, 1).astype(np.float16))


def test_shared_memory_holds_a_tile_with_a_column_more():
    assert SHARED_BYTES == 32 * 33 * 4
