"""Words in what users read: pages, help texts and messages use one term for one thing, in idiomatic English."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from sparsenn.cli.app import app

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
THING = (
    "thread|block|warp|row|sample|launch|kernel|line|module|bar|worker|column|channel|file|process|device|layer|page"
)
INSTEAD = {
    rf"\b(a|one) ({THING}) (a|an|each) ({THING}|verb|format|output|input|product|value|element)\b": "one ... per ...",
    rf"\bone a ({THING})\b": "one per ...",
    r"\bvariants?\b": "kernel",
    r"\b(tells?|told|learnt)\b": "says, is reported, is known, or by default",
    r"\bjoin(s|ed)?\b": "add, concatenate, combine or merge",
    r"\b(gone|goes?) on with\b": "continues, or resumes",
    r"\bline of time\b": "timeline",
    r"\bdivided by commas\b": "separated by commas",
    r"\binter-quartile\b": "interquartile",
    r"\bheld against\b": "compared with, or checked against",
    r"\b(floor ÷ time|(share )?of the floor)\b": "% of roofline",
    r"--(samples|input-kind|depth|std|checkpoint-seconds|no-dedup|no-merge)\b": "the option's name of now",
    r"\bfp16\b": "float16",
    r"\bthe bag\b": "these weights",
    r"\bInputs of one value are bits\b": "Inputs that all have the same value are stored as bits",
    r", too\b(?! )": "also, before the verb",
    r"\b(no layer|layers) here\b": "no layer of sparsenn, or sparsenn's layers",
    r"\bas often as wanted\b": "as often as you like",
    r"\bnothing says\b": "is not given",
    r"\b(is|are) said of\b": "applies to",
    r"\bwhat a layer gives\b": "a layer's output",
    r"\bbecomes? (one|a \w+) by\b": "X makes a Y of Z",
    r"\bstarts? afresh\b": "starts anew",
    r"\bgo(es)? on (at|side by side)\b": "resumes at, or runs at the same time",
    r"\bkn(ow|own|ows) (a digest|locks|by size)\b": "holds, has, or is identified by",
    r"\bthe layer at hand\b": "the layer that is being computed",
    r"\bonce, called\b(?! as often as you like)": "made ready once, called as often as you like",
    r"\bone run a machine\b": "one run per machine",
    r"\bsome tenths\b": "a few tenths",
    r"\bis of version\b": "has version",
    r"\bby increasing input\b": "in ascending order of the inputs",
    r"\bin turns?\b": "alternately, or one after the other",
    r"\bin parts of\b": "relative to",
    r"\bso many\b(?! as)": "the noun",
    r"\bkept \(": "not dropped, or not merged",
    r"\bThere was no\b": "was not available",
}
"""What must not be said, as a pattern, and what to say instead."""


def faults(text: str) -> list[str]:
    return [
        f"{found.group()!r}: say {instead}"
        for pattern, instead in INSTEAD.items()
        for found in re.finditer(pattern, " ".join(text.split()))
    ]


def helps(command: Any) -> Iterator[str]:
    yield command.help or ""
    yield from (getattr(parameter, "help", None) or "" for parameter in command.params)
    for below in getattr(command, "commands", {}).values():
        yield from helps(below)


def messages(code: str) -> Iterator[str]:
    """The texts within what is raised; an f-string's without its values."""
    for statement in ast.walk(ast.parse(code)):
        if isinstance(statement, ast.Raise) and statement.exc is not None:
            texts = [node.value for node in ast.walk(statement.exc) if isinstance(node, ast.Constant)]
            yield " ".join(text for text in texts if isinstance(text, str))


def test_pages() -> None:
    found = [f"{page.name}: {fault}" for page in PAGES for fault in faults(page.read_text(encoding="utf-8"))]
    assert found == []


def test_titles_notes_and_headings_of_result_files() -> None:
    found = []
    for path in sorted((ROOT / "bench" / "results").glob("*/*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        texts = [result["title"], *result["notes"], *(column["label"] for column in result["columns"])]
        found += [f"{path.name}: {fault}" for text in texts for fault in faults(text)]
    assert found == []


def test_help() -> None:
    assert [fault for text in helps(typer.main.get_command(app)) for fault in faults(text)] == []


def test_messages() -> None:
    files = sorted((ROOT / "sparsenn").rglob("*.py"))
    found = [f"{path.name}: {fault}" for path in files for text in messages(path.read_text()) for fault in faults(text)]
    assert found == []
