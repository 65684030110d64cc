"""Work of many launches, replayed as a graph: on an emulated device, and, by sessions, on a GPU."""

import itertools
from functools import partial

import numpy as np
import pytest
import scipy.sparse as sp
from device_emulation import Doubling, emulated_device

from sparsenn import (
    Add,
    Concatenate,
    Conv2d,
    Flatten,
    Linear,
    MaxPool2d,
    Multiply,
    Network,
    Node,
    ReLU,
    Session,
    SparseLinear,
)
from sparsenn.backends.cuda.runtime import recorder, replay
from sparsenn.backends.cuda.runtime.device import cupy
from sparsenn.backends.cuda.runtime.replay import DeviceReplay, HostReplay


@pytest.fixture
def doubled(monkeypatch):
    """An emulated device, the layers, and their replay, which is found to be faster."""
    seconds = (1e-3 / number for number in itertools.count(1))  # ever less
    monkeypatch.setattr(replay, "_seconds", lambda call: next(seconds))
    with emulated_device(monkeypatch) as device:
        layers = Doubling(device)
        yield device, layers, partial(DeviceReplay((3, 4)), layers)


def features_of(number):
    return cupy().asarray(np.full((3, 4), number, np.float32))


def assert_doubled(replayed, number):
    (outputs,) = replayed(features_of(number))
    assert np.array_equal(outputs.get(), np.full((3, 4), 2 * number))


def test_layers_are_captured_then_replayed(doubled):
    _, layers, replayed = doubled
    found, queued = [], []
    for number in range(5):
        found.append(replayed(features_of(number))[0])
        queued.append(layers.calls)
    assert queued == [2] * 5  # the first of the capture's two loads what is launched
    for number, outputs in enumerate(found):
        assert np.array_equal(outputs.get(), np.full((3, 4), 2 * number)), "outputs are nobody else's"


def test_rows_and_results_on_the_host(monkeypatch):
    monkeypatch.setattr(replay, "_seconds", lambda call: 1e-3)
    with emulated_device(monkeypatch) as device:
        layers, replayed = Doubling(device), HostReplay((3, 4))
        found = [replayed(layers, np.full((3, 2, 2), number, np.float32)) for number in range(4)]
        assert layers.calls == 2
        for number, results in enumerate(found):
            assert all(type(result) is np.ndarray for result in results)
            assert np.array_equal(results, [np.full((3, 4), 2 * number)]), "results are nobody else's"


def test_there_is_no_replay_where_others_capture_or_record(doubled):
    device, layers, replayed = doubled
    for number in range(3):
        replayed(features_of(number))
    stream = device.streams[-1]
    stream.begin_capture()
    assert replayed(features_of(7)) is None
    assert not stream.end_capture(), "nothing is queued"
    with recorder.recording():
        assert replayed(features_of(8)) is None
    assert_doubled(replayed, 9)
    assert layers.calls == 2


@pytest.mark.parametrize("failing", [1, 2], ids=["before the capture", "while it is captured"])
def test_there_is_no_replay_where_memory_does_not_suffice_for_a_graph(doubled, failing):
    _, layers, replayed = doubled
    layers.failing = {failing: MemoryError()}
    assert [replayed(features_of(number)) for number in range(5)] == [None] * 5
    assert layers.calls == failing, "it is tried once"


@pytest.mark.parametrize("failing", [1, 2], ids=["before the capture", "while it is captured"])
def test_an_interrupted_capture_is_begun_again(doubled, failing):
    _, layers, replayed = doubled
    layers.failing = {failing: KeyboardInterrupt()}
    with pytest.raises(KeyboardInterrupt):
        replayed(features_of(2))
    for number in range(3, 6):
        assert_doubled(replayed, number)
    assert layers.calls == failing + 2


@pytest.mark.parametrize(
    ("seconds", "calls"), [([2e-3, 3e-3], 2), ([60e-3], 0)], ids=["a graph that is slower", "work that takes long"]
)
def test_there_is_no_replay_where_a_graph_is_not_faster(monkeypatch, seconds, calls):
    found = iter(seconds)
    monkeypatch.setattr(replay, "_seconds", lambda call: next(found))
    with emulated_device(monkeypatch) as device:
        layers, replayed = Doubling(device), DeviceReplay((3, 4))
        assert [replayed(layers, features_of(number)) for number in range(3)] == [None] * 3
        assert layers.calls == calls
        assert replayed.nbytes == 0


def networks():
    """Of many launches: convolutions with branches, sparse layers with branches, dense layers."""
    rng = np.random.default_rng(3)

    def conv(channels, filters, activation=None):
        weights = rng.normal(size=(filters, channels, 3, 3)) / np.sqrt(9 * channels)
        return Conv2d(weights.astype(np.float32), None, activation or ReLU(), padding=1)

    def sparse(inputs, outputs):
        matrix = sp.random(inputs, outputs, 0.05, "csc", np.float32, rng)
        return SparseLinear.from_scipy(matrix, rng.normal(size=outputs).astype(np.float32))

    images = Network(
        (
            conv(3, 8),
            conv(8, 8),
            Node(Add(ReLU()), (1, 2)),
            MaxPool2d(2),
            Node(conv(8, 4), (4,)),
            Node(conv(8, 4), (4,)),
            Node(Concatenate(), (5, 6)),
            Flatten(),
            Linear(rng.normal(size=(8 * 64, 10)).astype(np.float32)),
        ),
        (3, 16, 16),
    )
    branches = Network((sparse(200, 300), sparse(300, 300), Node(sparse(300, 300), (1,)), Node(Add(), (2, 3))))
    gates = Network((conv(3, 8), MaxPool2d(16), Node(Multiply(), (2, 1)), Node(Multiply(ReLU()), (1, 3))), (3, 16, 16))
    dense = Network(tuple(Linear(rng.normal(size=(500, 500)).astype(np.float32) / 20) for _ in range(6)))
    return {
        "images": images,
        "branches": branches,
        "gates": gates,
        "sparse": Network((sparse(200, 200),) * 3),
        "dense": dense,
    }


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["float32", "float16"])
@pytest.mark.parametrize("name", list(networks()))
def test_replays_have_the_bits_of_the_first_call(name, precision, rng):
    cp, network = cupy(), networks()[name]
    session = Session(network, device="cuda", precision=precision)
    stream = cp.cuda.Stream(non_blocking=True)
    for rows in (1, 100, 37):
        features = [cp.asarray(rng.normal(size=(rows, network.inputs)).astype(np.float32)) for _ in range(6)]
        cp.cuda.Device().synchronize()
        first = [Session(network, device="cuda", precision=precision)(each) for each in features]
        found = [session(each) for each in features[:2]]
        cp.get_default_memory_pool().free_all_blocks()
        others = [cp.full(size, cp.nan, np.float32) for size in (100, 10_000, 1_000_000) for _ in range(20)]
        found.append(session(features[2]))
        with stream:
            found += [session(each) for each in features[3:]]
        stream.synchronize()
        assert all(bool(cp.isnan(other).all()) for other in others), "graphs write to their own memory"
        for one, other in zip(found, first, strict=True):
            assert bool((one == other).all())
        from_host = session(cp.asnumpy(features[0]))  # whose hidden values are looked at in half precision
        np.testing.assert_allclose(from_host, cp.asnumpy(first[0]), rtol=0, atol=0 if precision == "float32" else 1e-2)
        with stream:
            session(features[0])  # what a stream captures may not wait for another one
            stream.begin_capture()
            captured = session(features[0])
            graph = stream.end_capture()
            graph.launch(stream)
        stream.synchronize()
        assert bool((captured == first[0]).all())
