"""Texts of one line: names without what a terminal would obey, and objects without their arrays."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sparsenn
from sparsenn.formats import coo_to_csc
from sparsenn.printable import kind_of, printable

LONGEST = 400


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("radixnet-1024x120, 10⁹ × ä", "radixnet-1024x120, 10⁹ × ä"),
        ("\x1b[31mred", r"\x1b[31mred"),
        ("a\r\nb\tc\x9b", r"a\r\nb\tc\x9b"),
        ("\u202eright to left\u2028", r"\u202eright to left\u2028"),
        ("\ud800", r"\ud800"),
    ],
)
def test_what_does_not_print_is_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.text(st.characters()))
def test_a_text_is_one_line_that_prints(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert printable(shown) == shown


def shown_objects() -> list[object]:
    network = sparsenn.radixnet(256, 120, bias=-0.1)
    inputs = sparsenn.CSR.from_scipy(network[0].weights.to_scipy().tocsr())
    result = sparsenn.infer(network, inputs, device="cpu")
    data = sparsenn.TrainingData(np.ones((50, 30)), np.ones((50, 20)))
    trained = sparsenn.train(data, hidden=(40,), epochs=20, device="cpu")
    coo = sparsenn.COO.from_scipy(network[0].weights.to_scipy().tocoo())
    matrices = [inputs, coo, coo_to_csc(coo)]
    layers = [network[0], trained.network[0], sparsenn.Conv2d(np.ones((9, 9, 9, 9)))]
    dataset = sparsenn.Dataset("x" * 300, network, inputs, None, {"made by": "hand"})
    model = sparsenn.Model(trained.network, "mse", False)
    return [network, result, result.plan, data, trained, *matrices, *layers, dataset, model, sparsenn.Session(network)]


def test_what_an_object_is_has_an_article() -> None:
    kinds = ["an int", "a str", "a list", "an ndarray", "a NoneType"]
    assert [kind_of(each) for each in (1, "", [], np.zeros(1), None)] == kinds


def test_objects_are_shown_in_a_line() -> None:
    for thing in shown_objects():
        shown = repr(thing)
        assert shown.isprintable(), shown
        assert len(shown) < LONGEST, shown


def test_a_network_and_a_layer_say_what_they_are() -> None:
    network = sparsenn.radixnet(256, 120, bias=-0.1)
    assert repr(network) == "Network(120 layers, 256 → 256, 983,040 edges)"
    assert (
        repr(sparsenn.Linear(np.ones((3, 2)), 0.5))
        == "Linear(weights=<float32 3 × 2>, bias=0.5, activation=ReLU(clip=None))"
    )
