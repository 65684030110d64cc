"""What objects show in a notebook and in print: the same tables as the command line."""

from __future__ import annotations

import sys
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from sparsenn import Model, Network, Plan, Result, Session
from sparsenn.errors import UsageError
from sparsenn.layers import Concatenate, Linear
from sparsenn.network import Node


class Reader(HTMLParser):
    """Collects the cells of tables, facts and their headings apart; all tags must be closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.cells: dict[str, list[str]] = {"th": [], "td": [], "heading": [], "fact": [], "caption": []}
        self.kind = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag != "br":
            self.open.append(tag)
        heads_row = tag == "th" and ("scope", "row") in attrs
        self.kind = "heading" if heads_row else "fact" if tag == "td" and self.kind == "heading" else tag
        if self.kind in self.cells:
            self.cells[self.kind].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        if tag == "tr":
            self.kind = tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("th", "td", "caption"):
            self.cells[self.kind][-1] += data


def read(viewed: object) -> dict[str, list[str]]:
    reader = Reader()
    reader.feed(viewed._repr_html_())  # type: ignore[attr-defined]
    assert not reader.open
    return reader.cells


@pytest.fixture
def plan(network: Network) -> Plan:
    return Session(network, device="cpu").plan(np.ones((5, 64), np.float32))


def test_a_plan(plan: Plan) -> None:
    cells = read(plan)
    assert cells["fact"] == [str(plan)]
    assert cells["caption"] == [f"planned for 5 rows, on {plan.device}"]
    assert set(plan.to_dict()["kernels"]) <= set(cells["td"])
    assert "text-align: left" in plan._repr_html_()  # notebooks put cells to the right


def test_a_network_and_a_model(network: Network) -> None:
    for viewed in (network, Model(network, classes=True)):
        cells = read(viewed)
        assert "8 layers, 64 inputs → 64 outputs" in cells["fact"]
        assert "1–8" in cells["td"]
    assert "64, counted from 0" in cells["fact"]


def test_a_session(network: Network) -> None:
    session = Session(network, device="cpu", batch_size=7)
    facts = read(session)["fact"]
    assert facts[0] == str(session)
    assert "device='cpu'" in facts[1]
    assert "batch_size=7" in facts[1]
    assert "compaction" not in facts[1]


def test_a_result(result: Result) -> None:
    cells = read(result)
    assert cells["heading"][:2] == ["problem", "plan"]
    assert cells["fact"][1] == str(result.plan)
    assert set("12345678") <= set(cells["td"])
    assert "<details open>" in result._repr_html_()
    many = replace(result, statistics=result.statistics * 3)
    assert "<details>" in many._repr_html_()
    uncounted = read(replace(result, statistics=()))
    assert not uncounted["td"]
    assert "performed" not in uncounted["heading"]


def test_a_result_in_print(result: Result) -> None:
    text = str(result)
    assert text.startswith("problem")
    assert "categories" in text
    assert str(result.plan) in " ".join(text.split())
    assert len(repr(result).splitlines()) == 1


def test_a_picture(result: Result) -> None:
    figure = result.plot()
    assert len(figure.axes) == 3
    assert figure._repr_png_().startswith(b"\x89PNG")
    with pytest.raises(UsageError, match="statistics=True"):
        replace(result, statistics=()).plot()


@pytest.mark.parametrize("name", ["matplotlib", "pandas"])
def test_a_library_that_is_missing(name: str, result: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [module for module in sys.modules if module.partition(".")[0] == name]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UsageError, match=f"install it: pip install {name}"):
        result.plot() if name == "matplotlib" else result.to_frame()


def test_frames(result: Result) -> None:
    pytest.importorskip("pandas")
    layers, outputs = result.to_frame(), result.to_frame("outputs")
    assert layers.index.tolist() == list(range(1, 9))
    assert layers["kernel"].tolist() == [layer.kernel for layer in result.statistics]
    np.testing.assert_array_equal(outputs.to_numpy(), result.dense)
    with pytest.raises(UsageError, match="unknown table 'rows'"):
        result.to_frame("rows")
    with pytest.raises(UsageError, match="statistics=True"):
        replace(result, statistics=()).to_frame()


def test_a_frame_of_named_outputs() -> None:
    pytest.importorskip("pandas")
    parts = Linear(np.ones((2, 1))), Node(Linear(np.ones((2, 2))), (0,)), Node(Concatenate(), (1, 2))
    network = Network(parts, named_outputs={"height": (1,), "place": (2,)})
    frame = Session(network, device="cpu").run(np.ones((3, 2))).to_frame("outputs")
    assert frame.columns.tolist() == ["height", "place 1", "place 2"]
    assert frame.shape == (3, 3)
