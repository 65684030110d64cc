"""Graphs of layers as chains: each layer once, and the same numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from branching import evaluated, graphs
from hypothesis import given
from hypothesis import strategies as st

from sparsenn import Add, Concatenate, Keep, Linear, Network, Recall
from sparsenn.backends.oracle import network as oracle
from sparsenn.formats import from_dense
from sparsenn.io.branches import Node, chain

EYE = Linear(np.eye(3))


def test_a_residual_block() -> None:
    first = Node(EYE, (None,))
    inner = Node(EYE, (Node(EYE, (first,)),))
    for sources in ((first, inner), (inner, first)):
        made = chain(Node(Add(), sources))
        assert list(map(type, made)) == [Linear, Keep, Linear, Linear, Add]


def test_two_branches() -> None:
    first = Node(EYE, (None,))
    made = chain(Node(Concatenate(), (Node(EYE, (first,)), Node(EYE, (first,)))))
    assert list(map(type, made)) == [Linear, Keep, Linear, Keep, Recall, Linear, Concatenate]
    assert made[4] == Recall(2)


def test_nothing_is_kept_of_a_chain() -> None:
    node: Any = None
    for _ in range(3000):
        node = Node(EYE, (node,))
    assert chain(node) == (EYE,) * 3000


@given(graphs(), st.integers(0, 2**32 - 1))
def test_any_graph(last: Node, seed: int) -> None:
    network = Network(chain(last))
    assert network.kept[-1] == ()
    rows = np.random.default_rng(seed).integers(-4, 5, (3, network.inputs)).astype(np.float32)
    found = oracle.run(network, from_dense(rows)).toarray()
    np.testing.assert_array_equal(found, evaluated(last, rows))
    written = [id(layer) for layer in network if not isinstance(layer, Keep | Recall)]
    assert len(written) == len(set(written))
