from __future__ import annotations

import errno
import gzip
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sparsenn.errors import ResourceError
from sparsenn.runtime.storage import adding_to, check_replaceable, open_to_write, replacing
from sparsenn.runtime.storage.atomic import check_writable

FULL = OSError(errno.ENOSPC, "No space left on device")


def names(folder: Path) -> list[str]:
    return sorted(item.name for item in folder.iterdir())


def fail_within(context: Any, error: BaseException) -> None:
    """Write half of something, then fail."""
    with context as temporary:
        file = temporary / "half" if temporary.is_dir() else temporary
        file.write_text("half")
        raise error


def test_a_check_changes_nothing(tmp_path: Path) -> None:
    check_replaceable(tmp_path / "new")
    (tmp_path / "old").write_text("old")
    check_replaceable(tmp_path / "old")
    with pytest.raises(ResourceError, match="its folder does not exist"):
        check_replaceable(tmp_path / "none" / "new")
    with pytest.raises(ResourceError, match="it is a folder"):
        check_replaceable(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
    assert (tmp_path / "old").read_text() == "old"


def test_content_appears_when_the_block_ends(tmp_path: Path) -> None:
    target = tmp_path / "result.tsv"
    target.write_text("old")
    with replacing(target) as temporary:
        assert temporary.parent == tmp_path
        temporary.write_text("new")
        assert target.read_text() == "old"
    assert target.read_text() == "new"
    assert names(tmp_path) == ["result.tsv"]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o755, 0o444])
def test_overwriting_keeps_the_permissions(tmp_path: Path, mode: int) -> None:
    target = tmp_path / "result.tsv"
    target.write_text("old")
    target.chmod(mode)
    with replacing(target) as temporary:
        temporary.write_text("new")
        assert stat.S_IMODE(temporary.stat().st_mode) == 0o600
    assert stat.S_IMODE(target.stat().st_mode) == mode


IN_TEXT = OSError("Can't write data (file write failed: time = now, errno = 28, error message = 'No space')")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("bug"), SystemExit(1), MemoryError(), FULL, IN_TEXT])
@pytest.mark.parametrize("old", [None, "old"])
def test_whatever_ends_the_block_leaves_the_folder_as_it_was(
    tmp_path: Path, error: BaseException, old: str | None
) -> None:
    target = tmp_path / "result.tsv"
    if old is not None:
        target.write_text(old)
    expected, message = (ResourceError, "the disk is full") if isinstance(error, OSError) else (type(error), None)
    with pytest.raises(expected, match=message):
        fail_within(replacing(target), error)
    assert names(tmp_path) == ([] if old is None else ["result.tsv"])
    assert old is None or target.read_text() == old


def test_full_disk_while_flushing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fsync(_: int) -> None:
        raise FULL

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(ResourceError, match="the disk is full"), replacing(tmp_path / "result.tsv") as temporary:
        temporary.write_text("all of it")
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("write", "name", "reason"),
    [
        (replacing, "missing/result.tsv", "its folder does not exist"),
        (replacing, "file/result.tsv", "a part of the path is a file"),
        (replacing, "folder", "it is a folder"),
        (replacing, "x" * 300, "the name is too long"),
        (adding_to, "a/b", "its folder does not exist"),
        (adding_to, "file", "in the way"),
    ],
)
def test_impossible_targets(tmp_path: Path, write: Any, name: str, reason: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ResourceError, match=reason), write(tmp_path / name) as temporary:
        temporary.write_text("x")
    assert names(tmp_path) == ["file", "folder"]


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_an_open_file_is_added_to(tmp_path: Path, name: str) -> None:
    code = (
        "import sys\n"
        "from sparsenn.runtime.storage import replacing\n"
        "print('said before')\n"
        "with replacing(sys.argv[1]) as temporary:\n"
        "    temporary.write_text('new\\n')\n"
        "print('said after')\n"
    )
    (tmp_path / "log").write_text("old\n")
    before = (tmp_path / "log").stat().st_ino
    with (tmp_path / "log").open("a") as log:
        subprocess.run([sys.executable, "-c", code, name], stdout=log, check=True, timeout=240)
    assert (tmp_path / "log").read_text() == "old\nsaid before\nnew\nsaid after\n"
    assert (tmp_path / "log").stat().st_ino == before


def test_link_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("old")
    link.symlink_to(real)
    with replacing(link) as temporary:
        temporary.write_text("new")
    assert link.is_symlink()
    assert real.read_text() == "new"


def test_gzip_by_the_final_name_and_the_same_bytes_each_time(tmp_path: Path) -> None:
    for name in ("a.tsv.gz", "b.GZ", "c.tsv"):
        with replacing(tmp_path / name) as temporary, open_to_write(temporary, tmp_path / name) as file:
            file.write(b"text" * 100)
    assert (tmp_path / "a.tsv.gz").read_bytes() == (tmp_path / "b.GZ").read_bytes()
    assert gzip.decompress((tmp_path / "b.GZ").read_bytes()) == (tmp_path / "c.tsv").read_bytes() == b"text" * 100


@pytest.mark.parametrize("there", [False, True])
def test_files_are_added_together(tmp_path: Path, there: bool) -> None:
    folder = tmp_path / "folder"
    if there:
        folder.mkdir()
        (folder / "other").write_text("stays")
    with adding_to(folder) as staging:
        (staging / "inner").mkdir()
        (staging / "inner" / "a").write_text("a")
        (staging / "b").write_text("b")
        assert not there or set(names(folder)) == {staging.name, "other"}
        assert folder.exists() == there
    assert set(names(folder)) == {"inner", "b"} | ({"other"} if there else set())
    assert (folder / "inner" / "a").read_text() == "a"


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), FULL])
def test_no_file_is_added_if_one_fails(tmp_path: Path, there: bool, error: BaseException) -> None:
    folder = tmp_path / "folder"
    if there:
        folder.mkdir()
    expected = ResourceError if isinstance(error, OSError) else type(error)
    with pytest.raises(expected):
        fail_within(adding_to(folder), error)
    assert names(tmp_path) == (["folder"] if there else [])
    assert not there or names(folder) == []


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")

    def add() -> None:
        with adding_to(tmp_path) as staging:
            (staging / "a").write_text("new")
            (staging / "b").write_text("new")

    with pytest.raises(ResourceError, match="exists already"):
        add()
    assert names(tmp_path) == ["a"]
    assert (tmp_path / "a").read_text() == "old"


HALF = """
import signal, sys
from sparsenn.runtime import storage
signal.signal(signal.SIGINT, signal.default_int_handler)  # which processes in the background ignore
with getattr(storage, sys.argv[2])(sys.argv[1]) as temporary:
    file = temporary / "half" if temporary.is_dir() else temporary
    file.write_text("half")
    print("written", flush=True)
    signal.pause()
"""


@pytest.mark.parametrize("kind", ["replacing", "adding_to"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_killed_process_leaves_hidden_temporaries_alone(tmp_path: Path, kind: str, number: signal.Signals) -> None:
    command = [sys.executable, "-c", HALF, tmp_path / "x", kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout.readline() == b"written\n"
        process.send_signal(number)
    left = names(tmp_path)
    assert len(left) == (number == signal.SIGKILL)
    assert all(name.startswith(".sparsenn-") for name in left)


def test_a_folder_is_checked_by_making_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_writable(tmp_path)
    assert names(tmp_path) == []
    with pytest.raises(ResourceError, match="its folder does not exist"):
        check_writable(tmp_path / "none")

    def refuse(*_: object) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "touch", refuse)
    with pytest.raises(ResourceError, match="the file system is read-only"):
        check_writable(tmp_path)
