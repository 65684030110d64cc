from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sparsenn.datasets import cache, cache_folder
from sparsenn.errors import ResourceError


def test_the_folder_is_the_first_that_is_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPARSENN_CACHE", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "own"
    monkeypatch.setenv("SPARSENN_CACHE", "")
    assert cache_folder() == tmp_path / "xdg" / "sparsenn"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_folder() == tmp_path / "home" / ".cache" / "sparsenn"


def test_no_home_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("no home")

    monkeypatch.delenv("SPARSENN_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(ResourceError, match="set SPARSENN_CACHE"):
        cache_folder()


def test_disk_space_of_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    free = shutil.disk_usage(tmp_path).free
    cache.check_disk(folder, free // 2, "it", "do that")
    with pytest.raises(ResourceError, match=r"^it needs [\d,.]+ GB of disk space in .*/a/b; .* are free; do that$"):
        cache.check_disk(folder, 10 * free + 10**12, "it", "do that")
    assert not folder.exists()
