"""Random graphs with unusual axes and attributes: networks give what ONNX Runtime gives, or graphs are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

ort = pytest.importorskip("onnxruntime", reason="compares with ONNX Runtime")
from onnx_graphs import Array, model, node  # noqa: E402

from sparsenn import Session, from_onnx  # noqa: E402
from sparsenn.backends.foreign import ForeignNetwork  # noqa: E402
from sparsenn.errors import SparseNNError  # noqa: E402
from sparsenn.structure.onnx_graph import export_graph  # noqa: E402

ROWS = 3
"""Rows of the inputs where the graph leaves their number open; weights never have this size, so that no axis fits by
chance."""

Draw = Callable[[st.SearchStrategy[Any]], Any]


class Graph:
    """Nodes that are drawn one after the other, of which ONNX Runtime says what shape they give."""

    def __init__(self, draw: Draw) -> None:
        self._draw, self._random = draw, np.random.default_rng(draw(st.integers(0, 2**16)))
        self.is_open = draw(st.booleans())
        self.sizes: dict[str, list[int | str]] = {}
        self.inputs: dict[str, Array] = {}
        self.axes: dict[str, int] = {}
        self.nodes: list[Any] = []
        self.constants: dict[str, Array] = {}
        self.values: dict[str, tuple[int, ...]] = {}
        self.largest = 1.0
        self.add_input("x")
        self.x, self.axis = self.inputs["x"], self.axes["x"]

    def add_input(self, name: str) -> None:
        rank = self._draw(st.sampled_from([1, 2, 2, 2, 3, 3, 4, 4]))
        sizes = [self._draw(st.sampled_from([1, 2, 4])) for _ in range(rank)]
        axis = self._draw(st.integers(0, rank - 1)) if self._draw(st.booleans()) and not self.inputs else 0
        sizes[axis] = ROWS if self.is_open else sizes[axis]
        self.sizes[name] = ["n" if self.is_open and place == axis else size for place, size in enumerate(sizes)]
        self.inputs[name], self.axes[name], self.values[name] = self.numbers(*sizes), axis, tuple(sizes)

    def numbers(self, *shape: int) -> Array:
        return self._random.integers(-3, 4, shape).astype(np.float32)

    def constant(self, array: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(array)
        return name

    def add(self, name: str | None = None) -> None:
        """Add a node of a value; of what was made last, or else of anything, where none is named."""
        if name is None:
            last = list(self.values)[-1]
            name = last if self._draw(st.integers(0, 3)) else self._draw(st.sampled_from(list(self.values)))
        operator = self._draw(st.sampled_from(sorted(OPERATORS)))
        drawn = OPERATORS[operator](self, self._draw, name, self.values[name])
        if drawn is None:
            return
        inputs, attributes = drawn
        to = f"v{len(self.nodes) + 1}"
        made = node(operator, *inputs, to=to, **attributes)
        made.output.extend([f"{to}b"] if operator == "Split" else [])
        self.nodes.append(made)
        found = {name: self.run(name) for name in made.output}
        if any(each is None or not 0 < each.size <= 4096 or not (np.abs(each) < 1e4).all() for each in found.values()):
            self.nodes.pop()
            return
        for name, each in found.items():
            self.largest = max(self.largest, float(np.abs(each).max()))
            self.values[name] = each.shape

    def proto(self, *outputs: str) -> Any:
        return model(self.nodes, self.sizes, 17, outputs, **self.constants)

    def run(self, output: str) -> Array | None:
        """Return what ONNX Runtime gives; None where it refuses the graph."""
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        try:
            return ort.InferenceSession(self.proto(output).SerializeToString(), options).run(None, self.inputs)[0]
        except Exception:  # of several kinds
            return None


Made = tuple[list[str], dict[str, Any]] | None
Shape = tuple[int, ...]


def axis_of(draw: Draw, shape: Shape) -> int:
    return draw(st.integers(-len(shape), max(len(shape) - 1, 0)))


def broadcast(graph: Graph, draw: Draw, name: str, shape: Shape) -> Made:
    """A constant on either side whose sizes are those of a tensor or 1, with fewer axes or more; or another tensor."""
    if draw(st.integers(0, 3)) == 0:
        inputs = [name, draw(st.sampled_from(list(graph.values)))]
    else:
        sizes = [size if draw(st.booleans()) else 1 for size in shape]
        sizes = (
            sizes[draw(st.integers(0, len(sizes))) :] if draw(st.booleans()) else [1] * draw(st.integers(0, 1)) + sizes
        )
        inputs = [name, graph.constant(graph.numbers(*sizes) + np.float32(0.5))]
    return (inputs if draw(st.booleans()) else inputs[::-1]), {}


def matmul(graph: Graph, draw: Draw, name: str, shape: Shape) -> Made:
    left = draw(st.integers(0, 2)) == 0
    summed = shape[-2] if left and len(shape) > 1 else shape[-1] if shape else 1
    other = draw(st.integers(1, 5))
    sizes: list[int] = [[summed], [other, summed] if left else [summed, other]][draw(st.integers(0, 4)) > 0]
    sizes = [1] * draw(st.sampled_from([0, 0, 0, 1, 2])) + sizes if len(sizes) > 1 else sizes
    weights = graph.constant(graph.numbers(*sizes))
    return ([weights, name] if left else [name, weights]), {}


def gemm(graph: Graph, draw: Draw, name: str, shape: Shape) -> Made:
    if len(shape) != 2:
        return None
    left, turned, constant_turned = draw(st.booleans()), draw(st.integers(0, 1)), draw(st.integers(0, 1))
    mine = shape[::-1] if turned else shape
    other = draw(st.integers(1, 5))
    sizes = (other, mine[0]) if left else (mine[1], other)
    made = (other, mine[1]) if left else (mine[0], other)
    weights = graph.constant(graph.numbers(*(sizes[::-1] if constant_turned else sizes)))
    inputs = [weights, name] if left else [name, weights]
    if draw(st.booleans()):
        addend = [size if draw(st.booleans()) else 1 for size in made][draw(st.integers(0, 2)) :]
        inputs.append(graph.constant(graph.numbers(*addend)))
    attributes = {
        "transA": constant_turned if left else turned,
        "transB": turned if left else constant_turned,
        "alpha": draw(st.sampled_from([1.0, 0.5, 0.0, -2.0])),
        "beta": draw(st.sampled_from([1.0, 0.25, 0.0])),
    }
    return inputs, attributes


def along(*attributes: str) -> Callable[..., Made]:
    return lambda graph, draw, name, shape: ([name], {each: axis_of(draw, shape) for each in attributes})


def concat(graph: Graph, draw: Draw, name: str, shape: Shape) -> Made:
    others = [draw(st.sampled_from(list(graph.values))) for _ in range(draw(st.integers(0, 2)))]
    return [name, *others], {"axis": axis_of(draw, shape)}


def squeeze(graph: Graph, draw: Draw, name: str, shape: Shape) -> Made:
    ones = [axis for axis, size in enumerate(shape) if size == 1]
    if not ones or draw(st.booleans()):
        return [name], {}
    dropped = draw(st.lists(st.sampled_from(ones), min_size=1, unique=True))
    signs = [axis - len(shape) if draw(st.booleans()) else axis for axis in dropped]
    return [name, graph.constant(np.array(signs, np.int64))], {}


def unsqueeze(graph: Graph, draw: Draw, name: str, shape: Shape) -> Made:
    count = draw(st.integers(1, 2))
    rank = len(shape) + count
    if rank > 5:
        return None
    axes = draw(st.lists(st.integers(-rank, rank - 1), min_size=count, max_size=count))
    return [name, graph.constant(np.array(axes, np.int64))], {}


def transpose(graph: Graph, draw: Draw, name: str, shape: Shape) -> Made:
    if not shape or draw(st.integers(0, 3)) == 0:
        return [name], {}
    return [name], {"perm": draw(st.permutations(range(len(shape))))}


def reshape(graph: Graph, draw: Draw, name: str, shape: Shape) -> Made:
    """Axes that come together, or apart, with 0 and -1 for some of their sizes; at times in another order."""
    sizes = list(shape)
    for _ in range(draw(st.integers(0, 3))):
        place = draw(st.integers(0, max(len(sizes) - 1, 0)))
        if len(sizes) > 1 and place + 1 < len(sizes) and draw(st.booleans()):
            sizes[place : place + 2] = [sizes[place] * sizes[place + 1]]
        elif sizes and sizes[place] % 2 == 0 and len(sizes) < 5:
            sizes[place : place + 1] = draw(st.permutations([2, sizes[place] // 2]))
        elif len(sizes) < 5:
            sizes.insert(place, 1)
    if draw(st.integers(0, 4)) == 0:
        sizes = draw(st.permutations(sizes))
    sizes = [
        0 if shape[place : place + 1] == (size,) and draw(st.booleans()) else size for place, size in enumerate(sizes)
    ]
    if sizes and draw(st.booleans()):
        sizes[draw(st.integers(0, len(sizes) - 1))] = -1
    return [name, graph.constant(np.array(sizes, np.int64))], {}


def gather(graph: Graph, draw: Draw, name: str, shape: Shape) -> Made:
    if not shape:
        return None
    axis = axis_of(draw, shape)
    size = shape[axis]
    form = draw(st.sampled_from([(), (1,), (2,), (2, 2)]))
    places = graph._random.integers(-size, size, form)
    return [name, graph.constant(places)], {"axis": axis}


def slices(graph: Graph, draw: Draw, name: str, shape: Shape) -> Made:
    if not shape:
        return None
    axes = draw(st.lists(st.integers(0, len(shape) - 1), min_size=1, max_size=2, unique=True))
    bound = st.sampled_from([-(2**31), -3, -2, -1, 0, 1, 2, 3, 2**31 - 1, 2**63 - 1])
    starts, ends = ([draw(bound) for _ in axes] for _ in "se")
    steps = [draw(st.sampled_from([1, 1, 2, -1])) for _ in axes]
    return [name, *(graph.constant(np.array(each, np.int64)) for each in (starts, ends, axes, steps))], {}


def split(graph: Graph, draw: Draw, name: str, shape: Shape) -> Made:
    axis = axis_of(draw, shape)
    size = shape[axis] if shape else 1
    if size == 1:
        return None
    first = draw(st.integers(1, size - 1))
    return [name, graph.constant(np.array([first, size - first], np.int64))], {"axis": axis}


def reduce_mean(graph: Graph, draw: Draw, name: str, shape: Shape) -> Made:
    if not shape:
        return None
    axes = draw(st.lists(st.integers(0, len(shape) - 1), min_size=1, unique=True))
    if len(shape) > 2 and draw(st.booleans()):
        axes = list(range(2, len(shape)))
    return [name], {"axes": axes, "keepdims": draw(st.integers(0, 1))}


def conv(graph: Graph, draw: Draw, name: str, shape: Shape) -> Made:
    if len(shape) not in (3, 4):
        return None
    axes = len(shape) - 2
    groups = draw(st.sampled_from([1, 1, shape[1]]))
    filters = groups * draw(st.integers(1, 2))
    sizes = [draw(st.integers(1, 3)) for _ in range(axes)]
    attributes: dict[str, Any] = {
        "strides": [draw(st.integers(1, 2)) for _ in range(axes)],
        "dilations": [draw(st.integers(1, 2)) for _ in range(axes)],
        "group": groups,
    }
    if draw(st.booleans()):
        attributes["pads"] = [draw(st.integers(0, 2)) for _ in range(2 * axes)]
    elif draw(st.booleans()):
        attributes |= {
            "auto_pad": draw(st.sampled_from(["SAME_UPPER", "SAME_LOWER", "VALID"])),
            "dilations": [1] * axes,
        }
    inputs = [name, graph.constant(graph.numbers(filters, shape[1] // groups, *sizes))]
    return inputs + ([graph.constant(graph.numbers(filters))] if draw(st.booleans()) else []), attributes


def pool(graph: Graph, draw: Draw, name: str, shape: Shape) -> Made:
    if len(shape) not in (3, 4):
        return None
    axes = len(shape) - 2
    return [name], {
        "kernel_shape": [draw(st.integers(1, 2)) for _ in range(axes)],
        "strides": [draw(st.integers(1, 2)) for _ in range(axes)],
        "pads": [draw(st.integers(0, 1)) for _ in range(2 * axes)],
        "ceil_mode": draw(st.integers(0, 1)),
    }


def batch_normalization(graph: Graph, draw: Draw, name: str, shape: Shape) -> Made:
    if len(shape) < 2:
        return None
    numbers = [graph.numbers(shape[1]) for _ in range(3)]
    return [name, *(graph.constant(each) for each in numbers), graph.constant(np.abs(graph.numbers(shape[1])) + 1)], {}


OPERATORS: dict[str, Callable[..., Made]] = {
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Sum", "Max", "Min"), broadcast),
    **dict.fromkeys(("Relu", "Sigmoid", "Tanh", "Neg", "Identity", "GlobalAveragePool", "GlobalMaxPool"), along()),
    **dict.fromkeys(("Softmax", "Flatten"), along("axis")),
    "AveragePool": pool,
    "BatchNormalization": batch_normalization,
    "Concat": concat,
    "Conv": conv,
    "Gather": gather,
    "Gemm": gemm,
    "MatMul": matmul,
    "MaxPool": pool,
    "ReduceMean": reduce_mean,
    "Reshape": reshape,
    "Slice": slices,
    "Split": split,
    "Squeeze": squeeze,
    "Transpose": transpose,
    "Unsqueeze": unsqueeze,
}


@st.composite
def graphs(draw: Draw) -> Graph:
    graph = Graph(draw)
    for _ in range(draw(st.integers(1, 5))):
        graph.add()
    return graph


def check(graph: Graph, output: str) -> str:
    """Have the graph refused, or give what ONNX Runtime gives, in rows along any axis that has as many."""
    want = graph.run(output)
    assert want is not None
    try:
        network = from_onnx(graph.proto(output))
    except SparseNNError:
        return "refused"
    one = network.inputs == graph.x.size
    x = graph.x.reshape(1, -1) if one else np.moveaxis(graph.x, graph.axis if graph.is_open else 0, 0)
    found = Session(network, device="cpu")(np.ascontiguousarray(x).reshape(len(x), -1))
    axes = [axis for axis, size in enumerate(want.shape) if size == len(x)]
    wanted = [np.moveaxis(want, axis, 0).reshape(len(x), -1) for axis in axes] + [want.reshape(1, -1)] * one
    near = 1e-5 + 2e-6 * graph.largest
    assert any(each.shape == found.shape and np.allclose(found, each, rtol=1e-4, atol=near) for each in wanted), (
        f"{graph.proto(output)}\n{graph.x}\n{network}\n{found}\n{want}"
    )
    return "equal"


pytestmark = pytest.mark.filterwarnings("ignore::sparsenn.io.importers.rounding.RoundingWarning")


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(graphs())
def test_random_graphs_give_what_onnx_runtime_gives_or_are_refused(graph: Graph) -> None:
    if graph.nodes:
        check(graph, list(graph.values)[-1])


@st.composite
def named_graphs(draw: Draw) -> tuple[Graph, list[str]]:
    """A graph of up to three inputs, and two of its values or more."""
    graph = Graph(draw)
    for number in range(draw(st.integers(0, 2))):
        graph.add_input(f"z{number}")
    ends = []
    for name in [*graph.inputs, *graph.inputs]:
        for _ in range(draw(st.integers(1, 3))):
            graph.add(name)
            name = list(graph.values)[-1]
        ends += [name] * (name not in graph.inputs)
    return graph, draw(st.permutations(list(dict.fromkeys(ends)))) if ends else []


def check_named(graph: Graph, outputs: list[str]) -> str:
    """Have the graph refused, or give what ONNX Runtime gives by name; and again when it was written and read."""
    try:
        network = from_onnx(graph.proto(*outputs))
    except SparseNNError:
        return "refused"
    read = list(graph.inputs) if network.named_inputs is None else list(network.named_inputs)
    if network.named_outputs is None or (network.named_inputs is None and len(read) > 1):
        return "no names"
    arrays = {name: graph.inputs[name] for name in read}
    is_whole = network.inputs == sum(array.size for array in arrays.values())
    inputs: Any = {}
    for name, array in arrays.items():
        rows = array[None] if is_whole else np.moveaxis(array, graph.axes[name] if graph.is_open else 0, 0)
        inputs[name] = np.ascontiguousarray(rows).reshape(len(rows), -1)
    if network.named_inputs is None:
        (inputs,) = inputs.values()
    near = 1e-5 + 2e-6 * graph.largest
    again = from_onnx(export_graph(network, sparse=False))
    assert (again.named_inputs, again.named_outputs) == (network.named_inputs, network.named_outputs)
    for each in (network, again):
        for name, found in Session(each, device="cpu")(inputs).items():
            want: Any = graph.run(name)
            axes = [axis for axis, size in enumerate(want.shape) if size == len(found)]
            wanted = [np.moveaxis(want, axis, 0) for axis in axes] + [want[None]] * (len(found) == 1)
            assert any(
                right.size == found.size and np.allclose(found, right.reshape(found.shape), rtol=1e-4, atol=near)
                for right in wanted
            ), f"{graph.proto(*outputs)}\n{graph.inputs}\n{each}\n{name}: {found}\n{want}"
    return "equal"


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(named_graphs())
def test_random_graphs_of_several_inputs_and_outputs(drawn: tuple[Graph, list[str]]) -> None:
    if drawn[1]:
        check_named(*drawn)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(named_graphs())
def test_the_graph_of_a_network_computes_what_its_layers_do(drawn: tuple[Graph, list[str]]) -> None:
    graph, outputs = drawn
    try:
        network = from_onnx(graph.proto(*outputs))
    except SparseNNError:
        return
    if network.onnx_graph is None:
        return
    rows = np.random.default_rng(0).integers(-2, 3, (3, network.inputs)).astype(np.float32)
    expected = Session(network, device="reference", check_finite=False)(rows, form="dense")
    found = ForeignNetwork(network.onnx_graph).run(rows)
    largest = max(1.0, float(np.abs(expected[np.isfinite(expected)]).max(initial=0.0)))
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4 * largest, err_msg=str(graph.proto(*outputs)))
