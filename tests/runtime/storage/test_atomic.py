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
from sparsenn.runtime.storage import adding_to, check_replaceable, open_to_write, remove_stale, replacing
from sparsenn.runtime.storage.atomic import _temporary_folder, check_writable

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
        assert temporary.parent.parent == tmp_path
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
        assert stat.S_IMODE(temporary.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(target.stat().st_mode) == mode


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
        assert not there or set(names(folder)) == {staging.parent.name, "other"}
        assert folder.exists() == there
        assert stat.S_IMODE(staging.parent.stat().st_mode) == 0o700
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


@pytest.mark.parametrize(("name", "reason"), [("a/b", "its folder does not exist"), ("file", "in the way")])
def test_impossible_folders(tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ResourceError, match=reason), adding_to(tmp_path / name):
        pass
    assert names(tmp_path) == ["file"]


ENDED = """
import os, signal, sys
from pathlib import Path
from sparsenn.runtime.storage import adding_to

def end():
    if sys.argv[3] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    raise {"interrupted": KeyboardInterrupt, "failed": OSError}[sys.argv[3]]

renames, rename = iter(range(9)), Path.rename
Path.rename = lambda self, target: end() if next(renames) == int(sys.argv[2]) else rename(self, target)
with adding_to(sys.argv[1]) as staging:
    for name in "abc":
        (staging / name).write_text(name)
"""


@pytest.mark.parametrize(("there", "moved"), [(False, 0), (True, 0), (True, 1), (True, 2)])
@pytest.mark.parametrize("how", ["interrupted", "failed", "killed"])
def test_nothing_is_added_also_if_it_ends_between_two_moves(tmp_path: Path, there: bool, moved: int, how: str) -> None:
    """A killed process leaves whole files that it had moved; the next one that writes there removes the others."""
    folder = tmp_path / "folder"
    if there:
        folder.mkdir()
        (folder / "other").write_text("stays")
    command = [sys.executable, "-c", ENDED, folder, str(moved), how]
    done = subprocess.run(command, capture_output=True, timeout=240, check=False)
    assert done.returncode != 0
    assert (done.returncode == -signal.SIGKILL) == (how == "killed")
    for place in (tmp_path, folder):
        remove_stale.__wrapped__(place)
    assert names(tmp_path) == (["folder"] if there else [])
    left = list("abc"[:moved]) if how == "killed" else []
    assert not there or names(folder) == sorted([*left, "other"])
    assert all((folder / name).read_text() == name for name in left)
    with adding_to(folder) as staging:
        (staging / "d").write_text("d")
    assert (folder / "d").read_text() == "d"


HALF = """
import os, signal, sys
from pathlib import Path
from sparsenn.runtime.storage import adding_to, replacing
with (adding_to if sys.argv[2] == "folder" else replacing)(sys.argv[1]) as temporary:
    file = temporary / "half" if temporary.is_dir() else temporary
    file.write_text("half")
    print("written", flush=True)
    signal.pause()
"""


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_a_dead_process_left_goes_and_what_a_live_one_fills_stays(tmp_path: Path, kind: str) -> None:
    command = [sys.executable, "-c", HALF, tmp_path / "x", kind]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == b"written\n"
        (tmp_path / ".other.part").write_text("not ours")
        assert len(names(tmp_path)) == 3
        processes[0].kill()
        processes[0].wait()
        with replacing(tmp_path / "new"):
            assert len(names(tmp_path)) == 3  # that of the live one, not ours, and our own
        assert len(names(tmp_path)) == 3
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    remove_stale.__wrapped__(tmp_path)
    assert names(tmp_path) == [".other.part", "new"]


def test_a_folder_is_checked_by_making_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_writable(tmp_path)
    assert names(tmp_path) == []
    with pytest.raises(ResourceError, match="its folder does not exist"):
        check_writable(tmp_path / "none")

    def refuse(*_: object) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(ResourceError, match="the file system is read-only"):
        check_writable(tmp_path)


def test_a_folder_that_is_removed_before_it_is_locked_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, removed = os.open, list[Path]()

    def open_late(path: Path, *flags: Any, **named: Any) -> int:
        if not removed:
            removed.append(path)
            path.rmdir()
        return opened(path, *flags, **named)

    monkeypatch.setattr(os, "open", open_late)
    with _temporary_folder(tmp_path) as folder:
        assert folder.is_dir()
        assert folder != removed[0]
    assert not list(tmp_path.iterdir())
