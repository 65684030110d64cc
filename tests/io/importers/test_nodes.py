"""Graphs of layers that importers build, as nodes of a network: each layer once, and the same numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from branching import evaluated, graphs
from hypothesis import given
from hypothesis import strategies as st

from sparsenn import Add, Concatenate, Linear, Network
from sparsenn.backends.oracle import network as oracle
from sparsenn.formats import from_dense
from sparsenn.io.importers.nodes import Node, network_nodes

EYE = Linear(np.eye(3))


def sources(last: Node) -> list[tuple[int, ...]]:
    return [node.sources for node in network_nodes(last)]


def test_a_residual_block() -> None:
    first = Node(EYE, (None,))
    inner = Node(EYE, (Node(EYE, (first,)),))
    assert sources(Node(Add(), (first, inner))) == [(0,), (1,), (2,), (1, 3)]
    assert sources(Node(Add(), (inner, first))) == [(0,), (1,), (2,), (3, 1)]


def test_two_branches_lie_one_after_the_other() -> None:
    first = Node(EYE, (None,))
    last = Node(Concatenate(), (Node(EYE, (Node(EYE, (first,)),)), Node(EYE, (first,))))
    assert sources(last) == [(0,), (1,), (2,), (1,), (3, 4)]


def test_long_chains() -> None:
    node: Any = None
    for _ in range(3000):
        node = Node(EYE, (node,))
    network = Network(network_nodes(node))
    assert network.layers == (EYE,) * 3000
    assert network.chains == ((0, 3000),)


@given(graphs(), st.integers(0, 2**32 - 1))
def test_any_graph(last: Node, seed: int) -> None:
    network = Network(network_nodes(last))
    rows = np.random.default_rng(seed).integers(-4, 5, (3, network.inputs)).astype(np.float32)
    found = oracle.run(network, from_dense(rows)).toarray()
    np.testing.assert_array_equal(found, evaluated(last, rows))
    assert len(set(map(id, network.layers))) == len(network)
    assert network.live[0] == (0,)
    assert network.live[-1] == (len(network),)
