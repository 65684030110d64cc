"""Links that lead to what is to be written."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from sparsenn.errors import ResourceError
from sparsenn.runtime.storage import adding_to, check_replaceable, link_target, paths, replacing, same_file


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder such as /tmp, with a link to a file that is not in it."""
    (tmp_path / "precious").write_bytes(b"precious")
    (tmp_path / "folder").mkdir()
    made = tmp_path / "shared"
    made.mkdir()
    made.chmod(0o1777)
    (made / "link").symlink_to(tmp_path / "precious")
    (made / "elsewhere").symlink_to(tmp_path / "folder")
    return made


@pytest.fixture
def as_another(monkeypatch: pytest.MonkeyPatch, shared: Path) -> None:
    """Have this user be neither the one who made the links nor the one whose folder it is."""
    own, real = os.geteuid(), Path.stat

    def stat(path: Path, **options: bool) -> object:
        found = real(path, **options)
        return SimpleNamespace(st_mode=found.st_mode, st_uid=own + 2) if path == shared else found

    monkeypatch.setattr(paths.os, "geteuid", lambda: own + 1)
    monkeypatch.setattr(Path, "stat", stat)


@pytest.mark.usefixtures("as_another")
def test_links_of_others_in_shared_folders_are_not_followed(shared: Path, tmp_path: Path) -> None:
    (tmp_path / "own").symlink_to(shared / "link")
    for path in (shared / "link", tmp_path / "own"):
        with pytest.raises(ResourceError, match=r"shared/link is a link that another user put there"):
            check_replaceable(path)
    with pytest.raises(ResourceError, match="is a link that another user put there"), adding_to(shared / "elsewhere"):
        pass
    assert (tmp_path / "precious").read_bytes() == b"precious"


def test_own_links_are_followed(shared: Path, tmp_path: Path) -> None:
    with replacing(shared / "link") as temporary:
        temporary.write_bytes(b"new")
    assert (tmp_path / "precious").read_bytes() == b"new"
    assert (shared / "link").is_symlink()
    assert link_target(shared / "link") == tmp_path / "precious"


@pytest.mark.usefixtures("as_another")
def test_links_of_others_elsewhere_are_followed(shared: Path, tmp_path: Path) -> None:
    shared.chmod(0o775)
    assert link_target(shared / "link") == tmp_path / "precious"


def test_links_in_circles_end(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    link_target(tmp_path / "a")


def test_what_is_not_there_is_one_file_if_names_lead_to_one(tmp_path: Path) -> None:
    assert same_file(tmp_path / "a", tmp_path / "." / "a")
    assert not same_file(tmp_path / "a", tmp_path / "b")
    assert not same_file("a\0", "a")
