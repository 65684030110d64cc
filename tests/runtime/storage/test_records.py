"""Small records in the cache folder: read back as written, refused when damaged, replaced as a whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparsenn.errors import FileFormatError, ResourceError
from sparsenn.runtime.storage import read_record, write_record


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder that is not there yet."""
    place = tmp_path / "deep" / "cache"
    monkeypatch.setenv("SPARSENN_CACHE", str(place))
    return place


def test_a_record_is_read_as_it_was_written(folder: Path) -> None:
    assert read_record("a.json", 3) == {}
    path = write_record("a.json", 3, {"entries": [1, 2.5, None, "é"]})
    assert path == folder / "a.json"
    assert read_record("a.json", 3) == {"version": 3, "entries": [1, 2.5, None, "é"]}
    write_record("a.json", 3, {})
    assert read_record("a.json", 3) == {"version": 3}
    assert [item.name for item in folder.iterdir()] == ["a.json"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"[3]", "holds a JSON list"),
        (b'{"version": 2}', "has version 2"),
    ],
)
def test_damage_is_told_with_the_file_and_the_remedy(folder: Path, text: bytes, why: str) -> None:
    folder.mkdir(parents=True)
    (folder / "a.json").write_bytes(text)
    with pytest.raises(FileFormatError) as caught:
        read_record("a.json", 3)
    message = str(caught.value)
    assert message.startswith(f"{folder / 'a.json'}: ")
    assert why in message
    assert message.endswith("remove it")


def test_what_cannot_be_read_or_written_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "a.json").mkdir(parents=True)
    with pytest.raises(ResourceError, match=r"cannot read .*a\.json"):
        read_record("a.json", 1)
    with pytest.raises(ResourceError, match=r"cannot write .*a\.json"):
        write_record("a.json", 1, {})
    file = folder / "file"
    file.write_text("")
    monkeypatch.setenv("SPARSENN_CACHE", str(file / "cache"))
    with pytest.raises(ResourceError, match="set SPARSENN_CACHE to a folder"):
        write_record("a.json", 1, {})
