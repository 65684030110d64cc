"""Convolutions by cuDNN: what is asked of the library, the kernels beside it in emulation; on a GPU see
`test_on_tensor_cores`."""

from types import SimpleNamespace

import numpy as np
import pytest
from emulation import emulated

from sparsenn.backends.cuda.conv import Geometry, cudnn
from sparsenn.backends.cuda.conv.cudnn import FINISH, why_no_library
from sparsenn.backends.cuda.runtime.activation import IDENTITY, RELU
from sparsenn.backends.machine import H200

NAMES = {np.float32: "float", np.float16: "half_bits"}


# ---- Kernels beside the library, emulated --------------------------------------------------------------------------


@pytest.mark.parametrize(("activation", "clip"), [(RELU, np.inf), (RELU, 0.5), (IDENTITY, np.inf)])
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("number", NAMES)
@pytest.mark.parametrize("shape", [(3, 5, 77), (2, 3, 12), (2, 16, 9)], ids=str)
def test_bias_another_value_and_activation_in_place(shape, number, adds, activation, clip, rng):
    sums, others = rng.normal(size=(2, *shape)).astype(number)
    bias = rng.normal(size=shape[1]).astype(np.float32)
    sums[1, 1, 2] = np.nan
    totals = sums.astype(np.float32) + bias[:, None] + (others if adds else 0)
    expected = finished(totals, activation, clip).astype(number)
    for last in (0, 1) if shape[1] % 4 == 0 else (0,):
        found, added = (np.ascontiguousarray(each.swapaxes(1, 2)) if last else each.copy() for each in (sums, others))
        sizes = map(np.uint32, (sums.size, shape[2], shape[1]))
        kernel = emulated(FINISH, {"THREADS": 64, "NUMBER": NAMES[number], "LAST": last, "ADDS": int(adds)})
        kernel.launch(3, 64, found, added, bias, *sizes, np.int32(activation), np.float32(clip))
        assert np.array_equal(found.swapaxes(1, 2) if last else found, expected, equal_nan=True)


def finished(sums, activation, clip):
    return np.clip(sums, 0, clip) if activation == RELU else sums


# ---- What the library is asked for ---------------------------------------------------------------------------------


def test_without_the_frontend_the_kernels_say_so(monkeypatch):
    why_no_library.cache_clear()
    monkeypatch.setattr(cudnn, "find_spec", lambda name: None)
    assert why_no_library() == "the package nvidia-cudnn-frontend is not installed"
    assert "nvidia-cudnn-frontend" in cudnn._fits(H200, Geometry(8, 9, 9, 8, (3, 3)))
    why_no_library.cache_clear()


def test_a_library_that_does_not_load_is_said_to_be_missing(monkeypatch):
    def fail(name):
        raise OSError("libcudnn.so.9: cannot open")

    why_no_library.cache_clear()
    monkeypatch.setattr(cudnn, "find_spec", lambda name: object())
    monkeypatch.setattr(cudnn, "import_module", fail)
    assert why_no_library() == "cuDNN cannot be loaded (libcudnn.so.9: cannot open)"
    why_no_library.cache_clear()


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

    cudnn.plan_of.cache_clear()
    cudnn._handle.cache_clear()
    yield use
    cudnn.plan_of.cache_clear()
    cudnn._handle.cache_clear()


GROUPED = Geometry(12, 9, 7, 8, (3, 2), (2, 1), (1, 0), (1, 2), 2)


def test_a_convolution_in_float32_keeps_the_layout_and_leaves_tensor_cores_out(frontend):
    made = frontend("float")
    assert cudnn.plan_of("float32", GROUPED, 5, 0) is not None
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
    made = frontend("float", "half")
    assert cudnn.plan_of(precision, GROUPED, 5, 0) is not None
    (graph,) = made
    assert graph.types["io_data_type"] == number
    assert graph.tensors["images"].stride == [756, 1, 84, 12]
    assert graph.tensors["weights"].stride == [36, 1, 12, 6]
    assert graph.sums.data_type == number
    assert "TENSOR_CORE" not in graph.refused


def test_where_the_library_has_no_plan_there_is_none(frontend):
    frontend("half")
    assert cudnn.plan_of("float16", GROUPED, 5, 0) is not None
    assert cudnn.plan_of("tf32", GROUPED, 5, 0) is None
