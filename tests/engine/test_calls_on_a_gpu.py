"""Plain calls with rows on a GPU, of CuPy, of PyTorch, and of libraries that export theirs."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from sparsenn import Linear, Network, ReLU, Session
from sparsenn.backends.cuda.runtime import replay
from sparsenn.backends.cuda.runtime.replay import MAX_BOUND
from sparsenn.backends.cuda.transfer import queue
from sparsenn.engine.executable import Executable
from sparsenn.errors import InputError, UsageError

pytestmark = pytest.mark.gpu

WIDTH = 64


class Exported:
    """An array that speaks DLPack, and no more."""

    def __init__(self, array: Any) -> None:
        self.array, self.shape, self.dtype = array, array.shape, array.dtype

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


@pytest.fixture
def torch() -> Any:
    library = pytest.importorskip("torch")
    if not library.cuda.is_available():
        pytest.skip("PyTorch sees no GPU")
    return library


@pytest.fixture(params=["cupy", "torch", "exported"])
def array(request: pytest.FixtureRequest) -> Callable[[Any], Any]:
    """A function that makes arrays of a library on the GPU."""
    import cupy

    if request.param == "torch":
        library = request.getfixturevalue("torch")
        return lambda numbers: library.from_numpy(numbers).cuda()  # type: ignore[no-any-return]
    return cupy.asarray if request.param == "cupy" else lambda numbers: Exported(cupy.asarray(numbers))


@pytest.fixture(params=["sparse", "dense"])
def network(request: pytest.FixtureRequest, rng: np.random.Generator) -> Network:
    if request.param == "dense":
        layers = [rng.normal(size=(WIDTH, WIDTH)).astype(np.float32) / 8 for _ in range(3)]
        return Network(tuple(Linear(layer, 0.1, ReLU()) for layer in layers))
    return sparse_network()


def sparse_network() -> Network:
    weights = [sp.random(WIDTH, WIDTH, 0.2, format="csc", dtype=np.float32, random_state=seed) for seed in range(3)]
    return Network.from_scipy(weights, bias=0.1, activation=ReLU())


def on_host(outputs: Any) -> np.ndarray:
    return outputs.cpu().numpy() if hasattr(outputs, "cpu") else outputs.get()  # type: ignore[no-any-return]


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_interleaved_shapes_and_outputs_that_are_held(
    network: Network, array: Callable[[Any], Any], precision: str, rng: np.random.Generator
) -> None:
    kind = np.float16 if precision == "float16" else np.float32
    batches = [rng.random((count, WIDTH)).astype(kind) for count in (1, 5, 16) * 12]
    session, held = Session(network, device="cuda", precision=precision), []
    fixed = array(batches[0])
    for rows in batches:
        held.append((rows, session(array(rows))))
        held.append((batches[0], session(fixed)))
    others = Session(network, device="cuda", precision=precision)
    expected = {id(rows): on_host(others(array(rows))) for rows in batches}
    library = "torch" if type(fixed).__module__ == "torch" else "cupy"
    assert {type(outputs).__module__.partition(".")[0] for _, outputs in held} == {library}
    for rows, outputs in held:
        assert np.array_equal(on_host(outputs), expected[id(rows)])


@pytest.mark.parametrize("count", [1, 7])
def test_later_calls_queue_no_launches_of_their_own(
    array: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch, count: int, rng: np.random.Generator
) -> None:
    seconds = (1e-3 / number for number in itertools.count(1))  # ever less, so that each graph is faster
    monkeypatch.setattr(replay, "_seconds", lambda call: (call(), next(seconds))[1])
    session, rows = Session(sparse_network(), device="cuda"), array(rng.random((count, WIDTH)).astype(np.float32))
    others = [array(rng.random((count, WIDTH)).astype(np.float32)) for _ in range(20)]
    expected = [on_host(session(each)) for each in (rows, *others)]
    for _ in range(20):
        outputs = session(rows)
    bound = [len(getattr(replay, "bound", ())) for replay in session._cache.weights._replays.values()]
    assert max(bound) > 0, "graphs without copies"
    queued, compute = list[int](), Executable.compute
    monkeypatch.setattr(Executable, "compute", lambda self, *given: (queued.append(1), compute(self, *given))[1])
    for _ in range(5):
        outputs = session(rows)
        assert np.array_equal(on_host(outputs), expected[0])
    del outputs
    held = [session(each) for each in others]
    assert all(np.array_equal(on_host(one), other) for one, other in zip(held, expected[1:], strict=True))
    assert len(queued) <= MAX_BOUND, "graphs are captured for pairs of addresses that come again, and no others"


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_rows_that_are_too_many_to_copy(
    network: Network, array: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    kind, rng = np.float16 if precision == "float16" else np.float32, np.random.default_rng(5)
    batches = [rng.random((200, WIDTH)).astype(kind) for _ in range(12)]
    others = Session(network, device="cuda", precision=precision)
    expected = [on_host(others(array(rows))) for rows in batches]
    monkeypatch.setattr(queue, "MAX_COPIED_BYTES", 0)
    monkeypatch.setattr(replay, "MAX_UNCOPIED_SECONDS", float("inf"))  # also on a GPU that others use
    session = Session(network, device="cuda", precision=precision)
    fixed, held = array(batches[0]), []
    for rows in batches:
        held.append(session(array(rows)))
        for _ in range(3):
            assert np.array_equal(on_host(session(fixed)), expected[0])
    assert all(np.array_equal(on_host(outputs), other) for outputs, other in zip(held, expected, strict=True))
    replays = session._cache.weights._replays.values()
    assert any(getattr(each, "bound", ()) for each in replays), "graphs read rows where they are"


def test_rows_that_are_not_contiguous(array: Callable[[Any], Any], rng: np.random.Generator) -> None:
    session = Session(sparse_network(), device="cuda")
    wide = rng.random((6, 2 * WIDTH)).astype(np.float32)
    expected = session(np.ascontiguousarray(wide[:, ::2]))
    whole = array(wide)
    strided = Exported(whole.array[:, ::2]) if isinstance(whole, Exported) else whole[:, ::2]
    packed = array(np.ascontiguousarray(wide[:, ::2]))
    for _ in range(4):
        assert np.array_equal(on_host(session(packed)), expected)
        assert np.array_equal(on_host(session(strided)), expected)


def test_numbers_that_are_not_finite(array: Callable[[Any], Any]) -> None:
    good, bad = np.ones((2, 4, WIDTH), np.float32)
    bad[2, 3] = np.nan
    rows, spoilt = array(good), array(bad)
    with Session(sparse_network(), device="cuda") as session:
        for _ in range(5):
            expected = session(rows)
            session.check()
            session(spoilt)
            with pytest.raises(InputError, match="the rows of an earlier call"):
                session.check()
        session(spoilt)
        session.backend.queue.wait()
        with pytest.raises(InputError, match="the rows of an earlier call"):
            session(rows)
        assert np.array_equal(on_host(session(rows)), on_host(expected))


def test_a_closed_session(array: Callable[[Any], Any]) -> None:
    session, rows = Session(sparse_network(), device="cuda"), array(np.ones((4, WIDTH), np.float32))
    outputs = [session(rows) for _ in range(5)]
    session.close()
    with pytest.raises(UsageError, match="closed"):
        session(rows)
    assert all(np.array_equal(on_host(each), on_host(outputs[0])) for each in outputs)


def test_named_outputs(array: Callable[[Any], Any]) -> None:
    network = Network(sparse_network().nodes, named_outputs={"a": (8,), "b": (7, 8)})
    session, rows = Session(network, device="cuda"), array(np.ones((4, WIDTH), np.float32))
    for _ in range(5):
        outputs = session(rows)
        assert {name: tuple(each.shape) for name, each in outputs.items()} == {"a": (4, 8), "b": (4, 7, 8)}


# ---- PyTorch ----------------------------------------------------------------------------------------------------


def test_streams_of_pytorch_and_no_wait(torch: Any) -> None:
    session, large = Session(sparse_network(), device="cuda"), torch.ones(4096, 4096, device="cuda")
    rows = torch.rand(4, WIDTH, device="cuda")
    expected = session(rows).clone()
    side, done = torch.cuda.Stream(), torch.cuda.Event()
    torch.cuda.synchronize()
    for number in range(24):
        stream = side if number % 3 else torch.cuda.default_stream()
        with torch.cuda.stream(stream):
            for _ in range(20):
                busy = large @ large
            late = rows + 0 * busy[:4, :WIDTH]
            outputs = session(late)
            done.record(stream)
            assert not done.query() or number < 12, "once all is captured, nothing waits"
            found = outputs + 0
        torch.cuda.synchronize()
        assert torch.equal(found, expected)


def test_calls_in_a_graph_of_pytorch(torch: Any) -> None:
    session = Session(sparse_network(), device="cuda")
    rows = torch.rand(4, WIDTH, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(5):
            session(rows)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        outputs = session(rows)
    for number in range(1, 4):
        rows.fill_(number)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(outputs, session(rows))


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
def test_tensors_that_pytorch_resolves(torch: Any) -> None:
    session, rows = Session(sparse_network(), device="cuda"), torch.rand(4, WIDTH, device="cuda")
    expected = session(rows)
    for _ in range(4):
        assert torch.equal(session(rows), expected)
        negative = torch.complex(-rows, -rows).conj().imag
        assert negative.is_neg()
        assert torch.equal(session(negative.reshape(4, WIDTH)), expected)
        with torch.inference_mode():
            assert session(rows).is_inference()
        assert not session(rows).is_inference()
        assert torch.equal(session(torch.nn.Parameter(rows, requires_grad=False)), expected)
        with pytest.raises(InputError, match="cannot be read"):
            session(rows.clone().requires_grad_())
        with torch.autograd.forward_ad.dual_level(), pytest.raises(InputError, match="forward-mode"):
            session(torch.autograd.forward_ad.make_dual(rows, rows))


def test_layers_of_pytorch(torch: Any) -> None:
    import sparsenn.torch

    layer = torch.nn.Linear(WIDTH, 32).cuda()
    with torch.no_grad():
        layer.weight *= torch.rand_like(layer.weight) < 0.1
        rows = torch.rand(3, 4, WIDTH, device="cuda")
        expected = layer(rows)
        sparsenn.torch.sparsify(layer)
        for factor in range(1, 6):
            torch.testing.assert_close(layer(rows * factor) - layer.bias, (expected - layer.bias) * factor)
            torch.testing.assert_close(layer(rows), expected)
