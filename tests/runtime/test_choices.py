"""Measured choices on disk: read back as written, absent when damaged, and no reason for a call to fail."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sparsenn.runtime import choices
from sparsenn.runtime.choices import ChoicesWarning

KEY = {"device": "H200", "network": "ab12", "rows": 64, "form": "dense"}
RECORD = {
    "choices": [{"first": 1, "last": 3, "kernel": "chunks", "seconds": 1.2e-4, "candidates": {"chunks": [1.2e-4, 3]}}],
    "measured": "2026-11-28T23:00:00",
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of choices, which is not there yet."""
    monkeypatch.setenv("SPARSENN_CACHE", str(tmp_path / "cache"))
    choices._warn.cache_clear()
    return tmp_path / "cache" / "choices"


@contextmanager
def no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def path_of(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


def test_a_record_is_read_as_it_was_written(folder: Path) -> None:
    assert choices.read(KEY) is None
    assert choices.write(KEY, {"measured": "before"})
    assert choices.write(KEY, RECORD)
    assert choices.read(dict(reversed(KEY.items()))) == {**RECORD, "key": KEY}
    assert len(list(folder.iterdir())) == 1


@pytest.mark.parametrize("other", [{"rows": 65}, {"rows": "64"}, {"device": "A100"}, {"version": 1}])
def test_another_key_has_another_record(other: dict[str, Any]) -> None:
    choices.write(KEY, RECORD)
    assert choices.read(KEY | other) is None
    choices.write(KEY | other, {"measured": "later"})
    assert choices.read(KEY) == {**RECORD, "key": KEY}
    assert [entry["key"] for entry in choices.entries()] in ([KEY, KEY | other], [KEY | other, KEY])


def broken(record: dict[str, Any], **changes: Any) -> str:
    return json.dumps(record | changes)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda text: text[:-9], "is not JSON"),
        (lambda text: "[]", "holds a JSON list"),
        (lambda text: broken(json.loads(text), version=2), "has version 2"),
        (lambda text: broken(json.loads(text), key={**KEY, "rows": 65}), "does not hold the key"),
        (lambda text: broken(json.loads(text), key=[]), "does not hold the key"),
        (lambda text: broken(json.loads(text), key={"rows": None}), "does not hold the key"),
    ],
)
def test_a_damaged_file_counts_as_absent_with_one_warning(folder: Path, damage: Any, reason: str) -> None:
    choices.write(KEY, RECORD)
    path = path_of(folder)
    path.write_text(damage(path.read_text()))
    with pytest.warns(ChoicesWarning, match=reason) as caught:
        assert choices.read(KEY) is None
    assert str(path) in str(caught[0].message)
    with no_warnings():
        assert choices.read(KEY) is None
        assert choices.entries() == ()
        assert choices.clear("H200").files == 0
    assert choices.write(KEY, RECORD)
    assert choices.read(KEY) == {**RECORD, "key": KEY}


def test_a_folder_that_cannot_be_written_to_is_one_warning(folder: Path) -> None:
    folder.parent.write_text("")
    with pytest.warns(ChoicesWarning, match="are not stored: .*set SPARSENN_CACHE"):
        assert not choices.write(KEY, RECORD)
    with no_warnings():
        assert not choices.write(KEY | {"rows": 65}, RECORD)


def test_matching_records_are_removed_and_no_others(folder: Path) -> None:
    for device in ("H200", "H100", "EPYC, 2 threads"):
        choices.write(KEY | {"device": device}, RECORD)
    (folder / "mine.json").write_text("{}")
    done = choices.clear("H")
    assert (done.files, done.left) == (2, None)
    assert done.nbytes > 0
    assert [entry["key"]["device"] for entry in choices.entries()] == ["EPYC, 2 threads"]
    assert choices.clear("chunks").files == 0
    assert choices.clear().files == 1
    assert [path.name for path in folder.iterdir()] == ["mine.json"]
