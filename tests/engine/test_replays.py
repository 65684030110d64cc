"""The cache of replays, and replayed calls with rows in host memory, on a backend that computes on the host."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sessions import altered, unchanged

from sparsenn import Linear, Network, Session
from sparsenn.backends import backend_for
from sparsenn.backends.contract import Queue
from sparsenn.backends.cpu import CPUBackend
from sparsenn.backends.launching import combine_rows, image_kernel
from sparsenn.engine import weight_cache
from sparsenn.engine.executable import checked_replay
from sparsenn.engine.finite import OverflowGuard
from sparsenn.engine.weight_cache import WeightCache
from sparsenn.errors import InputError, NumericError
from sparsenn.layers import Add, Identity, Multiply, ReLU
from sparsenn.network import Node

HALF: Any = SimpleNamespace(precision="float16")


class Log:
    """Scans numbers at once."""

    def __init__(self, scans: int) -> None:
        self.results = np.zeros((scans, 2), np.uint32)
        self._count = 0

    def scan(self, numbers: np.ndarray) -> None:
        finite = np.isfinite(numbers)
        largest = np.abs(numbers[finite]).max(initial=0).astype(np.float32)
        self.results[self._count] = largest.view(np.uint32), not finite.all()
        self._count += 1


class Watch:
    """Looks for NaN and infinity at once."""

    def __init__(self) -> None:
        self._found = False

    def scan(self, numbers: np.ndarray) -> None:
        self._found |= not np.isfinite(numbers).all()

    @contextmanager
    def scanning(self, numbers: np.ndarray) -> Iterator[None]:
        yield
        self.scan(numbers)

    def passed(self) -> bool:
        return True

    def take_fault(self) -> bool:
        found, self._found = self._found, False
        return found


class Replaying:
    """A backend whose replays run the work; `recorded` counts the runs."""

    def __init__(self) -> None:
        self.largest_number = backend_for("cpu").largest_number
        self.number_check = Log
        self.queue, self.dropping = self, 0

    def replay(self, shape: tuple[int, int], on_host: bool) -> Any:
        assert on_host

        class Replay:
            nbytes = 12

            def __call__(self, run: Any, rows: np.ndarray) -> Any:
                return run(rows.reshape(shape))

        return Replay()

    def before_drop(self) -> None:
        self.dropping += 1


# ---- The cache ------------------------------------------------------------------------------------------------------


class Cached:
    """A replay of some bytes."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes, self.is_dropped = nbytes, False

    def drop(self) -> None:
        self.is_dropped = True


def test_the_replays_of_few_shapes_are_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_cache, "MAX_REPLAYS", 3)
    backend: Any = Replaying()
    cache, replays = WeightCache(backend), [Cached(1) for _ in range(3)]
    for number, replay in enumerate(replays):
        cache.replay(("a", number), partial(unchanged, replay))
    assert cache.replay(("a", 0)) is not None
    cache.replay(("b", 0), lambda: Cached(5))
    assert [cache.replay(key) is None for key in (("a", 0), ("a", 1), ("a", 2), ("b", 0))] == [
        False,
        True,
        False,
        False,
    ]
    assert (cache.nbytes, backend.dropping) == (7, 1)
    assert [replay.is_dropped for replay in replays] == [False, True, False]
    cache.drop_replays("a")
    assert cache.nbytes == 5
    cache.close()
    assert cache.nbytes == 0


def test_the_replays_of_few_bytes_are_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_cache, "MAX_REPLAY_BYTES", 10)
    cache = WeightCache(Replaying())  # type: ignore[arg-type]
    for number in range(5):
        cache.replay(("a", number), lambda: Cached(4))
    assert cache.nbytes == 12  # the last may come on top
    cache.replay(("a", 5), lambda: Cached(400))
    cache.replay(("a", 6), lambda: Cached(1))
    assert cache.nbytes == 1


# ---- Calls with rows in host memory -------------------------------------------------------------------------------


def call_of(within: OverflowGuard | None, run: Any, is_checked: bool = True) -> Any:
    replay = Replaying().replay((2, 3), on_host=True)
    return checked_replay(replay, run, Watch() if is_checked else None, within, 8)


def guarded(scales: list[float], kernel: Any = HALF) -> Any:
    """Layers that scale rows, as steps of a plan run them."""

    def run(rows: np.ndarray, guard: Any) -> np.ndarray:
        for number, scale in enumerate(scales):
            assert guard.before(kernel, rows, number, number + 1) == number + 1
            with np.errstate(over="ignore"):
                rows = (rows * np.float32(scale)).astype(np.float16).astype(np.float32)
            guard.after(kernel, rows, number, number + 1)
        return rows

    return run


def guard_of(*nodes: Any, **names: Any) -> OverflowGuard:
    backend: Any = Replaying()
    return OverflowGuard(Network(nodes, **names), backend)


@pytest.fixture
def within() -> OverflowGuard:
    return guard_of(*(Linear(np.eye(3, dtype=np.float32)) for _ in range(3)))


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_rows_that_are_not_finite_are_not_replayed(value: float) -> None:
    rows = np.ones((2, 3), np.float32)
    assert np.array_equal(call_of(None, lambda rows, guard: rows + 1)(rows), rows + 1)
    rows[1, 2] = value
    assert call_of(None, lambda rows, guard: rows + 1)(rows) is None
    assert call_of(None, lambda rows, guard: rows + 1, is_checked=False)(rows) is not None


@pytest.mark.parametrize(
    ("scales", "passes"),
    [([1, 2, 3], True), ([1e3, 1e3, 1e-9], False), ([1, 1, 1e9], False), ([1e4, 6, 1], True)],
    ids=["small", "beyond, then hidden", "beyond at the end", "just within"],
)
def test_numbers_beyond_half_precision_are_found_after_a_replay(
    within: OverflowGuard, scales: list[float], passes: bool
) -> None:
    found = call_of(within, guarded(scales))(np.ones((2, 3), np.float32))
    assert (found is not None) == passes


def test_inputs_beyond_half_precision_are_found_after_a_replay(within: OverflowGuard) -> None:
    assert call_of(within, guarded([1e-3, 1, 1]))(np.full((2, 3), 7e4, np.float32)) is None


@pytest.mark.parametrize("layer", [Add(), Multiply()], ids=str)
@pytest.mark.parametrize(("scale", "passes"), [(1.0, True), (3e4, False)])
def test_sums_and_products_of_halves_are_found_after_a_replay(layer: Any, scale: float, passes: bool) -> None:
    flat = Linear(np.eye(3, dtype=np.float32), None, ReLU(8.0))
    within = guard_of(Node(layer, (0, 0)), Node(flat, (1,)), named_inputs={"x": (3,)})
    kernel = image_kernel("cpu", layer)

    def run(rows: np.ndarray, guard: Any) -> np.ndarray:
        halves = rows.astype(np.float16)
        assert guard.before(kernel, halves, 0, 1) == 1
        with np.errstate(over="ignore"):
            combined = combine_rows(layer, (halves, halves + halves))
        guard.after(kernel, combined, 0, 1)
        assert guard.before(HALF, combined, 1, 2) == 2
        clipped = np.minimum(combined, 8)
        guard.after(HALF, clipped, 1, 2)
        return clipped

    found = call_of(within, run)(np.full((2, 3), scale, np.float32))
    assert (found is not None) == passes


def test_layers_that_have_to_be_run_apart_are_not_replayed() -> None:
    within = guard_of(*(Linear(np.full((3, 3), 300, np.float32), None, ReLU()) for _ in range(3)))

    def run(rows: np.ndarray, guard: Any) -> np.ndarray:
        assert guard.before(HALF, rows, 0, 3) == 3
        guard.after(HALF, rows, 0, 3)
        return rows

    assert call_of(within, run)(np.full((2, 3), 1e-3, np.float32)) is not None
    assert call_of(within, run)(np.ones((2, 3), np.float32)) is None


# ---- Sessions -------------------------------------------------------------------------------------------------------


class OnDevice(np.ndarray):
    """An array on a device."""


class Device(CPUBackend, Queue):
    """A device in the host's memory, whose replays run the work; `repeated` counts the calls of each."""

    in_host_memory = False

    def __init__(self) -> None:
        super().__init__()
        self.queue, self.repeated = self, dict[Any, int]()

    def device_rows(self, inputs: Any) -> Any:
        return inputs if isinstance(inputs, OnDevice) else None

    def rows_watch(self) -> Any:
        return Watch()

    def replay(self, shape: tuple[int, int], on_host: bool) -> Any:
        return Replaying().replay(shape, True)

    def repeated_call(self, run: Any, source: Any, rows: Any, replay: Any) -> Any:
        assert replay is not None
        assert rows.shape == source.shape

        def call(inputs: Any) -> Any:
            if inputs.shape != source.shape:
                return None
            self.repeated[replay] = self.repeated.get(replay, 0) + 1
            return replay(run, inputs)[0]

        return call


def test_calls_on_a_device_after_the_first_are_replays(rng: np.random.Generator) -> None:
    backend, network = Device(), branching(rng)
    session = altered(network, backend=backend, device="cpu")
    batches = [rng.normal(size=(rows, 40)).astype(np.float32).view(OnDevice) for rows in (2, 5)]
    expected = [Session(network, device="cpu")(np.asarray(rows)) for rows in batches]
    for _ in range(3):
        for rows, outputs in zip(batches, expected, strict=True):
            np.testing.assert_array_equal(session(rows), outputs)
    assert list(backend.repeated.values()) == [2, 2]
    batches[0][1, 2] = np.nan
    session(batches[0])
    with pytest.raises(InputError, match="earlier call"):
        session(batches[1])
    np.testing.assert_array_equal(session(batches[1]), expected[1])
    assert list(backend.repeated.values()) == [3, 3]


def branching(rng: np.random.Generator, scale: float = 1) -> Network:
    """Layers with a branch, whose hidden values are about `scale`."""

    def layer(factor: float) -> Linear:
        return Linear((factor * rng.normal(size=(40, 40)) / 6).astype(np.float32), None, Identity())

    return Network((layer(scale), layer(1), Node(Add(ReLU()), (1, 2)), layer(1 / scale)))


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["float32", "tf32", "float16"])
def test_replays_of_rows_on_the_host_have_the_bits_of_the_first_call(precision: str, rng: np.random.Generator) -> None:
    network = branching(rng)
    session = Session(network, device="cuda", precision=precision)
    for rows in (1, 37):
        given = [rng.normal(size=(rows, 40)).astype(np.float32) for _ in range(5)]
        first = [Session(network, device="cuda", precision=precision)(each) for each in given]
        found = [session(each) for each in given]
        for one, other in zip(found, first, strict=True):
            assert type(one) is np.ndarray
            assert np.array_equal(one, other)


@pytest.mark.gpu
def test_replays_of_rows_on_the_host_refuse_what_a_call_refuses(rng: np.random.Generator) -> None:
    session = Session(branching(rng, 100), device="cuda", precision="float16", kernel="cublas_float16")
    rows = rng.normal(size=(4, 40)).astype(np.float32)
    expected = session(rows)
    spoilt = rows.copy()
    spoilt[2, 3] = np.nan
    for _ in range(3):
        assert np.array_equal(session(rows), expected)
        with pytest.raises(InputError, match="input 3, column 4"):
            session(spoilt)
        with pytest.raises(NumericError, match="float16"):
            session(rows * 1000)
        with pytest.raises(NumericError, match="an input of"):
            session(np.full_like(rows, 1e5))
    assert np.array_equal(session(rows), expected)
