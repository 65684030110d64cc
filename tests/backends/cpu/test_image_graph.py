"""Graphs of layers of images on the CPU: any layers, any cut, against SciPy and the reference."""

from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from convolutions import assert_near_conv2d
from formulas import steepest
from hypothesis import given, settings
from hypothesis import strategies as st
from image_strategies import convolutions, pools
from oracle import activated

from sparsenn import Session
from sparsenn.backends.cpu import image_graph, image_packing, image_program
from sparsenn.backends.cpu.image_graph import graph_of, run_graph
from sparsenn.backends.cpu.image_operations import run_operations
from sparsenn.backends.cpu.image_packing import shared_taps
from sparsenn.backends.cpu.image_program import Planner
from sparsenn.errors import ShapeError
from sparsenn.layers import Add, AvgPool2d, Concatenate, Conv2d, Flatten, Identity, MaxPool2d, Multiply, ReLU, Tanh
from sparsenn.network import Network, Node


def run(layers, images):
    """Take images through layers and nodes in one graph."""
    network = Network(tuple(layers), image=images.shape[1:])
    sources = [node.sources for node in network.nodes]
    stack = graph_of(network.layers, network.shapes, sources)
    found = run_graph(stack, images.reshape(images.shape[0], network.inputs))
    return found.reshape(images.shape[0], *network.shapes[-1])


def pruned(rng, shape, density):
    return rng.normal(size=shape) * (rng.random(shape) < density)


@settings(max_examples=150)
@given(
    problem=convolutions(),
    density=st.sampled_from([0.0, 0.02, 0.3, 0.8, 1.0]),
    count=st.sampled_from([1, 2, 7, 16, 17, 40]),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_convolution_with_any_share_of_weights(problem, density, count, seed):
    layer, shape = problem
    rng = np.random.default_rng(seed)
    _, stride, padding, dilation = layer.sliding_window
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": layer.groups}
    layer = Conv2d(pruned(rng, layer.weights.shape, density), layer.bias, layer.activation, **options)
    images = rng.normal(size=(count, *shape)).astype(np.float32)
    activation = lambda sums: activated(layer.activation, sums)  # noqa: E731
    options["steepness"] = steepest(layer.activation)
    assert_near_conv2d(run([layer], images), images, layer.weights, layer.bias, activation, **options)


def test_no_images(rng):
    layers = [Conv2d(rng.normal(size=(3, 2, 3, 3))), MaxPool2d(2)]
    assert run(layers, np.zeros((0, 2, 9, 9), np.float32)).shape == (0, 3, 3, 3)


@pytest.mark.parametrize("density", [0.05, 1.0])
def test_bits_depend_on_no_cut(density, rng, monkeypatch):
    """Neither on the images that come along, nor on threads, on memory, or on who shares the filters."""
    layers = [
        Conv2d(pruned(rng, (9, 2, 3, 3), density), 0.1, ReLU(), padding=1),
        MaxPool2d(3, 2, 1),
        Conv2d(pruned(rng, (6, 9, 3, 2), density), None, Tanh(), stride=2, dilation=2),
        AvgPool2d(2, 1),
    ]
    images = rng.normal(size=(37, 2, 23, 26)).astype(np.float32)
    expected = run(layers, images)
    for threads in (1, 2, 5):
        for cache, work in ((1, 1), (image_graph.CACHE_BYTES, 1), (1 << 16, 1 << 40)):
            monkeypatch.setattr(image_graph, "thread_count", lambda threads=threads: threads)
            monkeypatch.setattr(image_graph, "CACHE_BYTES", cache)
            monkeypatch.setattr(image_graph, "IMAGE_WORK", work)
            monkeypatch.setattr(image_graph, "CHUNK_WORK", work)
            assert np.array_equal(run(layers, images), expected)
            assert np.array_equal(run(layers, images[5:6]), expected[5:6])
            assert np.array_equal(run(layers, images[3:5]), expected[3:5])


def test_weights_of_zero_change_no_bit(rng):
    """Filters in blocks, whose zeros are multiplied, give the bits of those whose taps are walked one by one."""
    weights = pruned(rng, (8, 3, 3, 3), 0.7).astype(np.float32)
    images = rng.normal(size=(20, 3, 11, 12)).astype(np.float32)
    together = run([Conv2d(weights, 0.5)], images)
    assert {len(each) for _, _, each in shared_taps(weights.reshape(8, -1), 8)} == {4}
    for k in range(8):
        assert np.array_equal(run([Conv2d(weights[k : k + 1], 0.5)], images)[:, 0], together[:, k])


def test_a_nan_is_larger_than_any_number(rng):
    images = rng.normal(size=(3, 2, 9, 9)).astype(np.float32)
    images[1, 1, 4, 4] = np.nan
    found = run([MaxPool2d(3)], images)
    assert np.argwhere(np.isnan(found)).tolist() == [[1, 1, 1, 1]]
    found = run([MaxPool2d(3, 1, 1)], np.full((2, 1, 4, 4), -np.inf, np.float32))
    assert (found == -np.inf).all()


@pytest.mark.parametrize("size", [(2, 2), (3, 5), (8, 8), (9, 30), (7, 31), (6, 32), (5, 33), (4, 65), (24, 24)])
@pytest.mark.parametrize("threads", [1, 3])
def test_squares_are_pooled_in_vectors(size, threads, rng, monkeypatch):
    """What vectors write beyond a line spoils no other line, image, channel or margin."""
    monkeypatch.setattr(image_graph, "thread_count", lambda: threads)
    monkeypatch.setattr(image_graph, "IMAGE_WORK", 1)
    monkeypatch.setattr(image_graph, "CHUNK_WORK", 1)
    images = rng.choice(np.array([-np.inf, -1, -0.0, 0, 2, np.nan], np.float32), (4, 5, *size))
    lines, columns = (each // 2 for each in size)
    squares = images[:, :, : 2 * lines, : 2 * columns].reshape(4, 5, lines, 2, columns, 2)
    assert np.array_equal(run([MaxPool2d(2)], images), squares.max(axis=(3, 5)), equal_nan=True)
    convolution = Conv2d(rng.normal(size=(3, 5, 3, 3)), padding=1)
    images = rng.normal(size=images.shape).astype(np.float32)
    pooled = images[:, :, : 2 * lines, : 2 * columns].reshape(4, 5, lines, 2, columns, 2).max(axis=(3, 5))
    for count in (1, 4):
        found = run([MaxPool2d(2), convolution], images[:count])
        assert np.array_equal(found, run([convolution], pooled[:count]))


@pytest.mark.parametrize("width", [2, 15, 16, 17, 31, 32, 33, 34, 63, 64, 65, 97])
@pytest.mark.parametrize("window", [1, 2, 3, 7])
def test_lines_of_any_width_are_sorted_for_strides(rng, width, window):
    weights, padding = rng.integers(-3, 4, (3, 2, window, window)), window // 2
    layer = Conv2d(weights, None, Identity(), stride=2, padding=padding)
    images = rng.integers(-9, 10, (3, 2, 7, width)).astype(np.float32)
    padded = np.pad(images, [(0, 0), (0, 0), (padding, padding), (padding, padding)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, (window, window), axis=(2, 3))[:, :, ::2, ::2]
    expected = np.einsum("ncyxij,fcij->nfyx", windows, weights)
    assert np.array_equal(run([layer], images), expected)
    assert np.array_equal(run([Conv2d(np.eye(2)[:, :, None, None], None, Identity()), layer], images), expected)


@pytest.mark.parametrize("width", [1, 7, 15, 16, 17, 33])
def test_means_of_whole_lines(rng, width):
    images = rng.integers(-9, 10, (3, 5, 6, width)).astype(np.float32)
    expected = (images.sum(axis=(2, 3)) / np.float64(6 * width)).astype(np.float32)
    assert np.array_equal(run([AvgPool2d((6, width))], images)[..., 0, 0], expected)


@pytest.mark.parametrize("strides", [(1, 2**31 - 1), (2**31 - 1, 2**31 - 1), (2, 9)], ids=str)
def test_strides_beyond_the_image_take_no_memory(strides, rng):
    images = rng.normal(size=(3, 2, 7, 5)).astype(np.float32)
    for layer in (
        Conv2d(rng.normal(size=(4, 2, 3, 3)), 0.5, Identity(), strides, padding=(1, 0)),
        MaxPool2d(3, strides),
    ):
        near = replace(layer, stride=tuple(min(stride, 9) for stride in strides))
        assert np.array_equal(run([layer], images), run([near], images))
        network = Network((layer,), image=(2, 7, 5))
        assert Planner(network.layers, network.shapes, [(0,)]).packed(1).size < 1000


@st.composite
def graphs(draw):
    """Nodes that read any nodes before them, and the shape of an image that they take."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shapes = [(draw(st.integers(1, 5)), draw(st.integers(1, 17)), draw(st.integers(1, 17)))]
    nodes = []

    def add(layer, sources):
        with suppress(ShapeError):
            read = [shapes[source] for source in sources]
            combined = isinstance(layer, Add | Multiply | Concatenate)
            shape = layer.combined_shape(read) if combined else layer.output_shape((1, *read[0]))[1:]
            nodes.append(Node(layer, tuple(sources)))
            shapes.append(shape)

    for _ in range(draw(st.integers(2, 9))):
        source = draw(st.integers(0, len(nodes)))
        channels, size = shapes[source][0], draw(st.sampled_from([1, 3]))
        weights = pruned(
            rng, (draw(st.sampled_from([channels, 6])), channels, size, size), draw(st.sampled_from([0.2, 0.9]))
        )
        activation = draw(st.sampled_from([Identity(), ReLU(), ReLU(1.5), Tanh()]))
        kind = draw(st.sampled_from(["convolution", "convolution", "pool", "combination", "factor"]))
        if kind == "convolution":
            stride, padding = draw(st.integers(1, 3)), size // 2
            add(Conv2d(weights, rng.normal(size=len(weights)), activation, stride, padding=padding), [source])
        elif kind == "pool":
            add(draw(pools())[0], [source])
        elif kind == "factor":
            add(AvgPool2d(shapes[source][1:]), [source])
            add(Multiply(activation), [len(nodes), source])
        else:
            like = [number for number, shape in enumerate(shapes) if shape == shapes[source]]
            others = draw(st.lists(st.sampled_from(like), min_size=1, max_size=2))
            add(draw(st.sampled_from([Add(activation), Multiply(activation), Concatenate()])), [source, *others])
    if not nodes:
        add(Conv2d(np.ones((2, shapes[0][0], 1, 1))), [0])
    return [*nodes, Node(Flatten(), (len(nodes),))], shapes[0]


@settings(max_examples=150)
@given(problem=graphs(), count=st.sampled_from([1, 2, 3, 9]), threads=st.sampled_from([1, 2, 3]))
def test_any_graph_gives_what_the_reference_gives(problem, count, threads):
    nodes, shape = problem
    images = np.random.default_rng(count).normal(size=(count, *shape)).astype(np.float32)
    network = Network(tuple(nodes), image=shape)
    expected = Session(network, device="reference")(images)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(image_graph, "thread_count", lambda: threads)
        patch.setattr(image_graph, "IMAGE_WORK", 1)
        patch.setattr(image_graph, "CHUNK_WORK", 1)
        found = run(nodes, images)
    np.testing.assert_allclose(
        found, expected.reshape(found.shape), rtol=1e-3, atol=1e-3 * max(1, np.abs(expected).max())
    )


def test_a_branch_that_a_convolution_reads_is_not_written_over(rng):
    """A sum takes the place of what it adds only where nothing else reads that."""
    weights = rng.normal(size=(4, 4, 3, 3))
    plain = Conv2d(weights, None, Identity(), padding=1)
    nodes = [Node(plain, (0,)), Node(plain, (1,)), Node(Add(), (2, 1)), Node(plain, (1,)), Node(Add(), (3, 4))]
    images = rng.normal(size=(2, 4, 20, 20)).astype(np.float32)
    own = Node(plain, (0,)), Node(Add(), (1, 0))  # which reads what it adds
    for each in (nodes, own):
        expected = Session(Network(tuple(each), image=(4, 20, 20)), device="reference")(images)
        np.testing.assert_allclose(run(each, images).reshape(2, -1), expected, rtol=1e-4, atol=1e-2)


def test_sums_of_a_branch_have_the_bits_of_an_addition(rng):
    layer = Conv2d(pruned(rng, (6, 6, 3, 3), 0.3), 0.1, Identity(), padding=1)
    images = rng.normal(size=(3, 6, 14, 14)).astype(np.float32)
    found = run([Node(layer, (0,)), Node(Add(ReLU()), (0, 1))], images)
    assert np.array_equal(found, np.maximum(images + run([layer], images), 0))


@pytest.mark.parametrize("density", [0.1, 1.0])
@pytest.mark.parametrize(("kind", "stride"), [("depthwise", 1), ("depthwise", 2), ("largest", 2), ("mean", 1)])
def test_channels_that_go_together_have_the_same_bits(rng, kind, stride, density, monkeypatch):
    """Whether one thread takes them or several do, each with planes of its own."""
    monkeypatch.setattr(image_graph, "IMAGE_WORK", 1)
    monkeypatch.setattr(image_graph, "CHUNK_WORK", 1)
    first = Conv2d(pruned(rng, (23, 6, 1, 1), density), 0.1, Tanh())
    deep = {
        "depthwise": Conv2d(rng.normal(size=(23, 1, 3, 3)), 0.2, ReLU(), padding=1, stride=stride, groups=23),
        "largest": MaxPool2d(3, stride, 1),
        "mean": AvgPool2d(3, stride, 1),
    }[kind]
    last = Conv2d(pruned(rng, (6, 23, 1, 1), density), 0.1, Identity())
    nodes = [Node(first, (0,)), Node(deep, (1,)), Node(last, (2,))]
    nodes += [Node(Add(), (0, 3)), Node(MaxPool2d(2), (4,))] if stride == 1 else []
    images = rng.normal(size=(3, 6, 13, 13)).astype(np.float32)
    network = Network(nodes, image=(6, 13, 13))
    found = []
    for most in (0, 1 << 30):
        monkeypatch.setattr(image_program, "CACHE_BYTES", most)
        program = graph_of(network.layers, network.shapes, [node.sources for node in network.nodes]).program(3)
        assert (len(program.packed.tasks) > len(program.packed.operations)) == (most == 0)
        for threads in (1, 2, 5):
            monkeypatch.setattr(image_graph, "thread_count", lambda threads=threads: threads)
            found.append(run(nodes, images))
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


@pytest.mark.parametrize("filters", [1, 3, 4, 5, 9])
def test_large_planes_of_few_channels(filters, rng, monkeypatch):
    """The planes of all channels leave the cache, but no fewer channels can go on together."""
    images = rng.normal(size=(2, 1, 21, 23)).astype(np.float32)
    first = Conv2d(rng.normal(size=(filters, 1, 3, 3)), 0.1, ReLU(), padding=1)
    depthwise = Conv2d(rng.normal(size=(filters, 1, 3, 3)), 0.2, groups=filters, stride=2)
    for second in (MaxPool2d(2), AvgPool2d(3, 1), depthwise):
        found = []
        for most in (1 << 30, 0):
            monkeypatch.setattr(image_program, "CACHE_BYTES", most)
            for threads in (1, 2, 5):
                monkeypatch.setattr(image_graph, "thread_count", lambda threads=threads: threads)
                monkeypatch.setattr(image_graph, "IMAGE_WORK", 1)
                found += [run([first, second], images), run([first, second], np.concatenate([images] * 3))[2:4]]
        for other in found[1:]:
            np.testing.assert_array_equal(other, found[0])


@pytest.mark.parametrize("density", [0.1, 1.0])
@pytest.mark.parametrize("size", [1, 3])
def test_cut_channels_leave_the_bits(rng, size, density, monkeypatch):
    """Partial sums are stored and loaded again; in one case a sum is written over what is added to it."""
    layers = [
        Conv2d(pruned(rng, (33, 70, size, size), density), 0.1, Tanh(), padding=size // 2),
        Conv2d(pruned(rng, (70, 33, 3, 3), density), 0.2, Identity(), padding=1),
        Conv2d(pruned(rng, (21, 70, 1, 1), density), 0.1, ReLU()),
    ]
    nodes = [Node(layers[0], (0,)), Node(layers[1], (1,)), Node(Add(ReLU()), (0, 2)), Node(layers[2], (3,))]
    images = rng.normal(size=(3, 70, 13, 13)).astype(np.float32)
    found = {}
    for most in (1, 1 << 30):
        monkeypatch.setattr(image_packing, "CUT_TAPS", most)
        monkeypatch.setattr(image_packing, "CUT_BYTES", most)
        network = Network(nodes, image=(70, 13, 13))
        program = graph_of(network.layers, network.shapes, [node.sources for node in network.nodes]).program(3)
        cuts = program.packed.operations[:, image_packing.CUTS]
        assert cuts.max() > 8 if most == 1 else cuts.max() == 1
        found[most] = run(nodes, images)
    np.testing.assert_array_equal(found[1], found[1 << 30])


def test_threads_share_the_filters_of_a_few_lanes_whose_channels_are_cut(rng, monkeypatch):
    """Each cut pairs filters anew, and the thread that begins a sum ends it."""
    layer = Conv2d(pruned(rng, (600, 40, 3, 3), 0.2), 0.1, ReLU(), padding=1)
    images = rng.normal(size=(1, 40, 5, 5)).astype(np.float32)
    for module, name in ((image_packing, "CUT_TAPS"), (image_packing, "CUT_BYTES"), (image_graph, "IMAGE_WORK")):
        monkeypatch.setattr(module, name, 1)
    monkeypatch.setattr(image_graph, "CHUNK_WORK", 1)
    found = []
    for threads in (1, 4):
        monkeypatch.setattr(image_graph, "thread_count", lambda threads=threads: threads)
        found.append(run([layer], images))
    np.testing.assert_array_equal(*found)


def test_a_thread_waits_for_chunks_of_others(rng):
    """One that has waited long returns, and goes on where it was."""
    network = Network((Conv2d(rng.normal(size=(8, 3, 3, 3))),), image=(3, 40, 40))
    images = rng.normal(size=(1, network.inputs)).astype(np.float32)
    program = graph_of(network.layers, network.shapes).program(1)
    arena, line = np.zeros(program.size, np.float32), np.zeros(2 * program.widest, np.float32)
    outputs, count = np.zeros((1, network.outputs), np.float32), len(program.packed.groups)
    counters = np.zeros(2 * count, np.int64)
    rest = (images, 0, 1, arena, line, np.zeros(program.widest), np.zeros(1, np.float32), outputs, counters, 0, 1, 4, 1)
    counters[2] = 1  # somebody has the first chunk of the convolution
    assert run_operations(program.packed, 0, *rest) == 1
    assert run_operations(program.packed, 1, *rest) == 1
    counters[3] += 1
    assert run_operations(program.packed, 1, *rest) == count


def test_an_interrupt_leaves_threads_a_buffer_of_their_own(rng, monkeypatch):
    layer, images = Conv2d(rng.normal(size=(2, 1, 3, 3))), rng.normal(size=(1, 1, 9, 9)).astype(np.float32)
    monkeypatch.setattr(image_graph, "thread_count", lambda: 2)
    monkeypatch.setattr(image_graph, "IMAGE_WORK", 1)
    buffers = []

    def interrupted(function, items):
        buffers.append(image_graph._scratch.take("arena", 16))
        raise KeyboardInterrupt

    expected = run([layer], images)
    with monkeypatch.context() as patch:
        patch.setattr(image_graph, "map_threads", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run([layer], images)
    assert np.array_equal(run([layer], images), expected)
    assert not np.shares_memory(buffers[0], image_graph._scratch.take("arena", 16))
