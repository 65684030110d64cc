"""Files to be written are refused before the work begins."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from sparsenn.cli.targets import check_target
from sparsenn.errors import ResourceError, UsageError

SUFFIXES = (".tsv", ".h5")


@pytest.mark.parametrize("name", ["new.tsv", "new.H5"])
def test_a_new_or_existing_file_is_fine(tmp_path: Path, name: str) -> None:
    check_target("--output", tmp_path / name, SUFFIXES)
    (tmp_path / name).write_text("old")
    check_target("--output", tmp_path / name, SUFFIXES)
    assert (tmp_path / name).read_text() == "old"


def test_no_file_needs_no_check() -> None:
    check_target("--output", None, SUFFIXES)


def test_any_suffix_where_none_is_demanded(tmp_path: Path) -> None:
    check_target("--json", tmp_path / "report")


@pytest.mark.parametrize(("name", "found"), [("a.csv", "'.csv'"), ("a", "no suffix"), (".h5", "no suffix")])
def test_unknown_suffix(tmp_path: Path, name: str, found: str) -> None:
    with pytest.raises(UsageError, match=rf"--output .*{name}: {found} .* use \.tsv, \.h5"):
        check_target("--output", tmp_path / name, SUFFIXES)


def test_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match=r"the folder .*none does not exist"):
        check_target("--output", tmp_path / "none" / "a.tsv", SUFFIXES)


def test_a_file_where_the_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    with pytest.raises(ResourceError, match="plain does not exist"):
        check_target("--output", tmp_path / "plain" / "a.tsv", SUFFIXES)


def test_folder_and_socket_are_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder.h5").mkdir()
    with pytest.raises(UsageError, match="is a folder"):
        check_target("--output", tmp_path / "folder.h5", SUFFIXES)
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("s")
        with pytest.raises(UsageError, match="is a socket"):
            check_target("--json", Path("s"))


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/2", "/dev/null", "pipe"])
def test_what_leads_to_a_stream_is_fine(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    check_target("--json", tmp_path / name)


def test_an_open_file_that_is_not_open() -> None:
    with pytest.raises(ResourceError, match="--json /dev/fd/9876: is not open"):
        check_target("--json", Path("/dev/fd/9876"))


def test_folder_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)
    with pytest.raises(ResourceError, match="no permission to write into"):
        check_target("--output", tmp_path / "a.tsv", SUFFIXES)
