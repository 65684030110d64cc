"""The tables of the README and of docs/ are what the result files say, and short."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from children import python
from results_file import write_results

EMPTY = "# Title\n\n<!-- table:layers -->\n<!-- /table -->\n\nText.\n"

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def update(repository: Path, tmp_path: Path) -> Run:
    def run(*arguments: str, root: Path = tmp_path) -> tuple[int, str]:
        done = python(repository / "tools" / "update_tables", "--root", root, *arguments)
        assert done.stdout == ""
        return done.returncode, done.stderr

    return run


def put(root: Path, machine: str = "desk", name: str = "layers", **changes: Any) -> None:
    parts: dict[str, Any] = {
        "table": "layers",
        "title": "One layer",
        "columns": [("kernel", "kernel"), ("seconds", "time (s)", "{:.2f}")],
        "rows": [{"kernel": "scipy", "seconds": 1.5}, {"kernel": "a|b", "seconds": None}],
        "configuration": {"runs": 20},
        "notes": ["Medians."],
    }
    write_results(root / "bench" / "results" / machine / f"{name}.json", **(parts | changes))


def test_tables_of_this_repository_are_up_to_date(repository: Path, update: Run) -> None:
    code, message = update("--check", root=repository)
    assert code == 0, message


def test_tables_are_written_between_their_markers(tmp_path: Path, update: Run) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(EMPTY)
    put(tmp_path)
    assert update("--check")[0] == 1
    assert readme.read_text() == EMPTY
    assert update() == (0, "")
    text = readme.read_text()
    assert text.startswith("# Title\n\n<!-- table:layers -->\n\n**One layer**\n")
    assert text.endswith("\n<!-- /table -->\n\nText.\n")
    assert "| kernel | time (s) |\n| --- | ---: |\n| scipy | 1.50 |\n| a\\|b | – |\n\nMedians.  \n*" in text
    assert update("--check") == (0, "")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<!-- table:layers -->\n", "table layers has no <!-- /table -->"),
        ("x\n<!-- /table -->\n", "README.md:2: <!-- /table --> where a table never began"),
        ("<!-- table:layers -->\n<!-- table:layers -->\n<!-- /table -->\n", "README.md:2: .* where a table is open"),
        ("<!-- table:layers first -->\n<!-- /table -->\n", "README.md:1: "),
        ("<!-- table:layer -->\n<!-- /table -->\n", r"README.md:1: unknown table layer: .* \(layers known\)"),
    ],
)
def test_faulty_markers_are_refused_and_nothing_is_written(
    tmp_path: Path, update: Run, text: str, message: str
) -> None:
    (tmp_path / "README.md").write_text(text)
    put(tmp_path)
    for arguments in ([], ["--check"]):
        code, said = update(*arguments)
        assert code == 2
        assert re.search(message, said)
        assert "Traceback" not in said
    assert (tmp_path / "README.md").read_text() == text


def test_figures_in_the_text_need_a_source(tmp_path: Path, update: Run) -> None:
    (tmp_path / "docs").mkdir()
    page, readme = tmp_path / "docs" / "figures.md", tmp_path / "README.md"
    page.write_text(EMPTY.replace("table:layers", "figures:prose"))
    put(tmp_path)
    text = EMPTY + "\nA network of 1024 × 120, `sleep 3 s`.\n\n    sleep 3 s\n\nIt takes 5 ms, 2.5 × less.{}\n\n"
    readme.write_text(text.format(""))
    code, message = update()
    assert (code, "README.md: '5 ms' is in no generated table" in message) == (2, True)
    readme.write_text(text.format(" <!-- source: code.py -->"))
    code, message = update()
    assert (code, "README.md: the source code.py does not exist" in message) == (2, True)
    (tmp_path / "code.py").touch()
    assert update() == (0, "")
    assert "| README | 5 ms; 2.5 × | [code.py](../code.py) |\n\n<!-- /table -->" in page.read_text()
    readme.write_text(EMPTY + "\nShort. <!-- source: code.py -->\n")
    code, message = update()
    assert (code, "in a paragraph without a figure" in message) == (2, True)


def test_most_lines_of_the_pages_are_written_for_readers(repository: Path) -> None:
    pages = [page.read_text(encoding="utf-8") for page in (repository / "docs").glob("*.md")]
    generated = sum(
        text.count("\n") for page in pages for text in re.findall(r"<!-- \w+:.*?<!-- /table -->", page, re.S)
    )
    assert generated <= 0.4 * sum(page.count("\n") for page in pages)
