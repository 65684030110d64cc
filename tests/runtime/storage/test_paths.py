"""Links that lead to what is to be written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sparsenn.errors import ResourceError
from sparsenn.runtime.storage import check_replaceable, link_target, replacing, same_file


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder such as /tmp, with a link to a file that is not in it."""
    (tmp_path / "precious").write_bytes(b"precious")
    made = tmp_path / "shared"
    made.mkdir()
    made.chmod(0o1777)
    (made / "link").symlink_to(tmp_path / "precious")
    return made


PROTECTED = Path("/proc/sys/fs/protected_symlinks")


@pytest.mark.skipif(
    os.geteuid() != 0 or not PROTECTED.exists() or PROTECTED.read_text() != "1\n",
    reason="only root gives links away, and only some systems protect users from links of others",
)
def test_links_that_the_system_does_not_follow_are_not_followed(shared: Path, tmp_path: Path) -> None:
    os.chown(shared, 12345, 12345)
    os.chown(shared / "link", 54321, 54321, follow_symlinks=False)
    (tmp_path / "own").symlink_to(shared / "link")
    for path in (shared / "link", tmp_path / "own"):
        with pytest.raises(ResourceError, match="no permission"):
            check_replaceable(path)
    assert (tmp_path / "precious").read_bytes() == b"precious"


def test_own_links_are_followed(shared: Path, tmp_path: Path) -> None:
    with replacing(shared / "link") as temporary:
        temporary.write_bytes(b"new")
    assert (tmp_path / "precious").read_bytes() == b"new"
    assert (shared / "link").is_symlink()
    assert link_target(shared / "link") == tmp_path / "precious"


def test_links_in_circles_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(ResourceError, match="Too many levels"):
        check_replaceable(tmp_path / "a")


def test_what_is_not_there_is_one_file_if_names_lead_to_one(tmp_path: Path) -> None:
    assert same_file(tmp_path / "a", tmp_path / "." / "a")
    assert not same_file(tmp_path / "a", tmp_path / "b")
    assert not same_file("a\0", "a")
