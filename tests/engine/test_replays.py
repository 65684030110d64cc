"""The cache of replays; and calls with rows in host memory that a GPU replays."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from sessions import unchanged

from sparsenn import Linear, Network, Session
from sparsenn.backends.contract import Queue
from sparsenn.backends.cpu import CPUBackend
from sparsenn.engine import weight_cache
from sparsenn.engine.weight_cache import WeightCache
from sparsenn.errors import InputError, NumericError
from sparsenn.layers import Add, Identity, ReLU
from sparsenn.network import Node

# ---- The cache ------------------------------------------------------------------------------------------------------


class Dropping(CPUBackend, Queue):
    """A backend that counts how often it hears that something is dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.queue, self.dropping = self, 0

    def before_drop(self) -> None:
        self.dropping += 1


class Cached:
    """A replay of some bytes."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes, self.is_dropped = nbytes, False

    def drop(self) -> None:
        self.is_dropped = True


def test_the_replays_of_few_shapes_are_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_cache, "MAX_REPLAYS", 3)
    backend = Dropping()
    cache, replays = WeightCache(backend), [Cached(1) for _ in range(3)]
    for number, replay in enumerate(replays):
        cache.replay(("a", number), partial(unchanged, replay))
    assert cache.replay(("a", 0)) is not None
    cache.replay(("b", 0), lambda: Cached(5))
    dropped = [cache.replay(key) is None for key in (("a", 0), ("a", 1), ("a", 2), ("b", 0))]
    assert dropped == [False, True, False, False]
    assert (cache.nbytes, backend.dropping) == (7, 1)
    assert [replay.is_dropped for replay in replays] == [False, True, False]
    cache.drop_replays("a")
    assert cache.nbytes == 5
    cache.close()
    assert cache.nbytes == 0


def test_the_replays_of_few_bytes_are_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_cache, "MAX_REPLAY_BYTES", 10)
    cache = WeightCache(Dropping())
    for number in range(5):
        cache.replay(("a", number), lambda: Cached(4))
    assert cache.nbytes == 12  # the last may come on top
    cache.replay(("a", 5), lambda: Cached(400))
    cache.replay(("a", 6), lambda: Cached(1))
    assert cache.nbytes == 1


# ---- Sessions -----------------------------------------------------------------------------------------------------


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
