"""`--report FILE.html`: pages that are whole, need no network, and can be read by everybody."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from command_line import Refused, Run

from sparsenn.io import write_model
from sparsenn.layers import Identity, Linear, ReLU
from sparsenn.model import Model
from sparsenn.network import Network

VOID = {"meta", "link", "img", "br", "hr", "input", "source"}
FOREIGN = {"script", "link", "img", "iframe", "object", "embed", "video", "audio", "base", "form", "use", "image"}
REFERENCES = {"src", "href", "xlink:href", "srcset", "action", "data", "poster", "background", "style"}


class Page(HTMLParser):
    """A page, checked as it is read: each element is ended in its turn, and none refers to anything else."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        assert tag not in FOREIGN
        assert not REFERENCES & {name for name, _ in attributes}
        assert not any(name.startswith("on") for name, _ in attributes)
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def check(path: Path) -> Page:
    text = path.read_text(encoding="utf-8")
    page = Page(text)
    assert text.startswith("<!DOCTYPE html>\n<html lang=")
    assert not re.search(r"https?:|//|url\(|@import", text)
    assert "prefers-color-scheme: dark" in text
    assert len(page.named("h1")) == len(page.named("main")) == len(page.named("title")) - len(page.named("rect")) == 1
    assert all(svg["role"] == "img" and svg["aria-label"] for svg in page.named("svg"))
    assert len(page.named("table")) > len(page.named("caption")) >= 1
    assert {cell["scope"] for cell in page.named("th")} == {"row", "col"}
    return page


@pytest.fixture
def model(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    layers = Linear(rng.normal(size=(6, 5)), None, ReLU()), Linear(rng.normal(size=(5, 3)), None, Identity())
    path = tmp_path / "a<b>&.h5"
    write_model(path, Model(Network(layers), classes=True, loss="cross_entropy"))
    return path


def test_of_a_dataset(run: Run, problem: Path, tmp_path: Path) -> None:
    path = tmp_path / "run.html"
    run("infer", problem, "--device", "cpu", "--kernel", "panel", "--report", path)
    page = check(path)
    text = " ".join(page.texts)
    assert all(heading in text for heading in ("Summary", "Plan", "Layers", "Machine"))
    assert "PASSED: all" in text
    assert "active rows by layer: 6 bars" in text
    assert len(page.named("svg")) == 3
    assert len(page.named("tr")) > 6


def test_of_a_model_whose_name_a_browser_would_obey(run: Run, model: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.random.default_rng(1).random((40, 6), np.float32))
    path = tmp_path / "run.html"
    run("predict", model, tmp_path / "rows.npy", "--device", "cpu", "--report", path)
    assert "a<b>&.h5 on rows.npy" in check(path).texts


def test_of_a_benchmark(run: Run, model: Path, tmp_path: Path) -> None:
    path = tmp_path / "bench.html"
    how = ("--rows", "1,20", "--against", "scipy", "--seconds", 0.01, "--device", "cpu")
    run("benchmark", model, *how, "--report", path)
    page = check(path)
    assert len(page.named("svg")) == 2
    assert any("samples per call: 20; median in ms, from left to right: sparsenn: " in text for text in page.texts)


@pytest.mark.parametrize("name", ["run.pdf", "nowhere/run.html"])
def test_what_cannot_be_written_is_told_first(refused: Refused, problem: Path, name: str) -> None:
    refused(("infer", problem, "--report", name), "--report")
