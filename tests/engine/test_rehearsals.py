"""Rehearsals: a first call has the kernels of all steps compiled side by side, before any is launched."""

from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from scipy.sparse import csc_array
from sessions import altered, same

from sparsenn import Flatten, MaxPool2d, Network, Session
from sparsenn.backends.contract import Queue
from sparsenn.backends.cpu import CPUBackend
from sparsenn.layers import ImageLayer, Linear, ReLU, SparseLinear


class Rehearsing(CPUBackend, Queue):
    """A backend whose launches take kernels that have to be compiled; `done` lists what it is asked for."""

    rehearses, in_host_memory = True, False

    def __init__(self):
        super().__init__()
        self.queue, self.done = self, []

    @contextmanager
    def rehearsal(self):
        self.done.append("begin")
        yield
        self.done.append("end")

    def prepare(self, layers, *more):
        self.done.append(type(layers[0]).__name__)
        stack = super().prepare(layers, *more)
        if not isinstance(layers[0], ImageLayer):
            return stack
        return replace(stack, prepared=(partial(self.run, *layers, *stack.prepared),))

    def run(self, layer, prepared, *matrices):
        self.done.append(layer.name)
        return prepared(*matrices)


@pytest.fixture
def network(rng):
    weights = rng.normal(size=(16, 5)).astype(np.float32)
    return Network((MaxPool2d(2), Flatten(), Linear(weights, None, ReLU())), (1, 8, 8))


def test_steps_are_rehearsed_in_the_first_call_alone(network, rng):
    backend, rows = Rehearsing(), rng.normal(size=(3, 64)).astype(np.float32)
    session = altered(network, backend=backend, device="cpu")
    first = session.run(rows, statistics=False).outputs
    pooled = ["MaxPool2d", "begin", "max_pool2d", "end"]
    assert backend.done[:4] == pooled
    assert backend.done.index("Linear") > 3, "weights are prepared while kernels are compiled"
    rehearsed = len(backend.done) - 1 - backend.done[::-1].index("end")
    assert backend.done[rehearsed + 1 :] == ["max_pool2d", "flatten"]
    backend.done.clear()
    assert same(session.run(rows, statistics=False).outputs, first)
    assert backend.done == ["max_pool2d", "flatten"]
    assert same(first, Session(network, device="cpu").run(rows).outputs)


def test_a_step_that_drops_rows_is_not_rehearsed(rng):
    weights = (rng.random((16, 5)) < 0.5).astype(np.float32)
    sparse = SparseLinear.from_scipy(csc_array(weights), -0.5)
    backend = Rehearsing()
    session = altered(Network((sparse,)), backend=backend, device="cpu", kernel="panel")
    session(rng.random((3, 16)).astype(np.float32))
    assert "SparseLinear" in backend.done
    assert "begin" not in backend.done
