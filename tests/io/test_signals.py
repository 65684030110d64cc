"""Signals while text is parsed: pyarrow must not replace the handlers of the program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import csv

from sparsenn.io.challenge.tsv import read_images, read_layer
from sparsenn.io.tables.files import read_table


@pytest.mark.parametrize("read", [read_table, lambda path: read_layer(path, (9, 9)), lambda path: read_images(path, 9)])
def test_the_handlers_of_pyarrow_are_disabled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Any) -> None:
    calls: list[Any] = []
    parse = csv.read_csv
    monkeypatch.setattr(pa, "enable_signal_handlers", calls.append)
    monkeypatch.setattr(csv, "read_csv", lambda *arguments: (calls.append("parse"), parse(*arguments))[1])
    path = tmp_path / "triples.tsv"
    path.write_text("1\t2\t0.5\n")
    read(path)
    assert calls[:2] == [False, "parse"]
