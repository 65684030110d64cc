"""Signals that come while text is parsed: pyarrow must not listen to them, which it does in the main thread alone."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from pyarrow import csv

from sparsenn.io import read_csv
from sparsenn.io.challenge.tsv import read_images, read_layer


@pytest.mark.parametrize("read", [read_csv, lambda path: read_layer(path, (9, 9)), lambda path: read_images(path, 9)])
def test_text_is_parsed_where_no_signal_is_listened_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Any
) -> None:
    def listening(*arguments: Any) -> Any:
        threads.append(threading.current_thread())
        return parse(*arguments)

    threads: list[threading.Thread] = []
    parse = csv.read_csv
    monkeypatch.setattr(csv, "read_csv", listening)
    path = tmp_path / "triples"
    path.write_text("1\t2\t0.5\n" if read is not read_csv else "1,2,0.5\n")
    read(path)
    assert threads
    assert threading.main_thread() not in threads
