"""A pytest plugin that writes down which tests a run has chosen: pytest -p chosen --chosen FILE --collect-only.

FILE gets a JSON object of the tests' ids, in order, each with the names of its marks.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--chosen", type=Path, metavar="FILE", help="write down the chosen tests and their marks")


def pytest_collection_finish(session: pytest.Session) -> None:
    path: Path | None = session.config.getoption("--chosen")
    if path:
        marks = {item.nodeid: sorted({mark.name for mark in item.iter_markers()}) for item in session.items}
        path.write_text(json.dumps(marks), encoding="utf-8")
