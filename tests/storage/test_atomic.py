from __future__ import annotations

import errno
import gzip
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from children import interrupts_obeyed

from sparsenn.errors import ResourceError
from sparsenn.storage import adding_to, open_to_write, replacing

FULL = OSError(errno.ENOSPC, "No space left on device")


def names(folder: Path) -> list[str]:
    return sorted(item.name for item in folder.iterdir())


def fail_within(context: Any, error: BaseException) -> None:
    """Write half of something, then fail."""
    with context as temporary:
        file = temporary / "half" if temporary.is_dir() else temporary
        file.write_text("half")
        raise error


def test_content_appears_when_the_block_ends(tmp_path: Path) -> None:
    target = tmp_path / "result.tsv"
    target.write_text("old")
    with replacing(target) as temporary:
        assert temporary.parent == tmp_path
        temporary.write_text("new")
        assert target.read_text() == "old"
    assert target.read_text() == "new"
    assert names(tmp_path) == ["result.tsv"]


def test_new_file_has_the_permissions_of_any_other(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    with replacing(tmp_path / "made"):
        pass
    modes = {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}
    assert len(modes) == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("bug"), SystemExit(1), MemoryError()])
@pytest.mark.parametrize("old", [None, "old"])
def test_whatever_ends_the_block_leaves_the_folder_as_it_was(
    tmp_path: Path, error: BaseException, old: str | None
) -> None:
    target = tmp_path / "result.tsv"
    if old is not None:
        target.write_text(old)
    with pytest.raises(type(error)):
        fail_within(replacing(target), error)
    assert names(tmp_path) == ([] if old is None else ["result.tsv"])
    assert old is None or target.read_text() == old


def test_full_disk_while_writing(tmp_path: Path) -> None:
    target = tmp_path / "result.tsv"
    with pytest.raises(ResourceError, match=r"cannot write .*result\.tsv: the disk is full; free some space"):
        fail_within(replacing(target), FULL)
    assert names(tmp_path) == []


def test_full_disk_while_flushing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fsync(_: int) -> None:
        raise FULL

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(ResourceError, match="the disk is full"), replacing(tmp_path / "result.tsv") as temporary:
        temporary.write_text("all of it")
    assert names(tmp_path) == []


def test_error_number_that_is_only_in_the_text(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match="the disk is full"), replacing(tmp_path / "result.h5"):
        raise OSError("Can't write data (file write failed: time = now, errno = 28, error message = 'No space')")


def test_unknown_error_is_shown_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match=r"cannot write .*: the moon is in the way"), replacing(tmp_path / "x"):
        raise OSError("the moon is in the way")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("missing/result.tsv", "its folder does not exist"),
        ("file/result.tsv", "a part of the path is a file"),
        ("folder", "it is a folder"),
        ("x" * 300, "the name is too long"),
    ],
)
def test_impossible_targets(tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ResourceError, match=reason), replacing(tmp_path / name) as temporary:
        temporary.write_text("x")
    assert names(tmp_path) == ["file", "folder"]


def test_longest_name_is_possible(tmp_path: Path) -> None:
    with replacing(tmp_path / ("x" * 255)):
        pass
    assert names(tmp_path) == ["x" * 255]


def test_devices_are_not_replaced() -> None:
    with pytest.raises(ResourceError, match="device or a pipe"), replacing(os.devnull):
        pass
    assert not Path(os.devnull).is_file()


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.EDQUOT])
def test_refusals_of_the_system_say_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(ResourceError, match=r"; (choose|free)"), replacing(tmp_path / "x"):
        pass


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


def test_interrupt_from_outside_leaves_nothing(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys\n"
        "from sparsenn.storage import replacing\n"
        "with replacing(sys.argv[1]) as temporary:\n"
        "    temporary.write_text('half')\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    signal.pause()\n"
    )
    command = [sys.executable, "-c", code, tmp_path / "x"]
    with interrupts_obeyed():
        done = subprocess.run(command, capture_output=True, timeout=240, check=False)
    assert b"KeyboardInterrupt" in done.stderr
    assert names(tmp_path) == []


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
        assert set(names(folder)) == {staging.name} | ({"other"} if there else set())
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


def test_messages_name_the_place_that_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fsync(_: int) -> None:
        raise FULL

    monkeypatch.setattr(os, "fsync", fsync)

    def add() -> None:
        with adding_to(tmp_path / "folder") as staging, replacing(staging / "a.tsv"):
            pass

    with pytest.raises(ResourceError, match=r"cannot write .*/folder/a\.tsv: the disk is full") as caught:
        add()
    assert ".part" not in str(caught.value)


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


@pytest.mark.parametrize(("name", "reason"), [("a/b", "its folder does not exist"), ("file", "in the way")])
def test_impossible_folders(tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ResourceError, match=reason), adding_to(tmp_path / name):
        pass
    assert names(tmp_path) == ["file"]
