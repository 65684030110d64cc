"""The caches: what counts as ours, what is removed, and what never is."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparsenn.errors import UsageError
from sparsenn.runtime.storage import CACHES, cache_named, caches, clear, compiled

OURS = {
    "datasets": ("datasets/radixnet-1024x120-digits-v1.h5", "datasets/radixnet-1024x120-digits-v1.h5.json"),
    "measurements": ("ceilings.json",),
    "choices": (f"choices/{'0' * 24}.json",),
    "gpu-kernels": (f"kernels/cluster-{'0' * 24}.cubin",),
    "cupy": (f"cupy/{'a' * 40}.cubin",),
}
OTHERS = (
    "mnist/train-images-idx3-ubyte.gz",
    "datasets/mine.h5",
    "notes.txt",
    "choices/mine.json",
    "kernels/own.cubin",
    "cupy/readme",
)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder with our files and those of others, a hundred bytes each."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("SPARSENN_CACHE", str(folder))
    monkeypatch.delenv("CUPY_CACHE_DIR", raising=False)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "numba"))
    for name in (*OTHERS, *(name for names in OURS.values() for name in names)):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * 100)
    return folder


@pytest.mark.parametrize("name", OURS)
def test_our_files_are_counted_and_removed_and_no_others(place: Path, name: str) -> None:
    before = {path for path in place.rglob("*") if path.is_file()}
    cache = cache_named(name)
    mine = {place / each for each in OURS[name]}
    assert (set(cache.files), cache.nbytes, cache.writable, cache.own) == (mine, 100 * len(mine), True, True)
    (done,) = clear([name])
    assert (done.name, done.files, done.nbytes, done.left) == (name, len(mine), 100 * len(mine), None)
    assert {path for path in place.rglob("*") if path.is_file()} == before - mine


def test_clearing_all_leaves_what_is_not_ours(place: Path) -> None:
    kernels = cache_named("cpu-kernels")
    assert kernels.folder == place.parent / "numba"
    clear(name for name in CACHES if name != "cpu-kernels")  # of numba's, those of this installation are in use
    assert {str(path.relative_to(place)) for path in place.rglob("*") if path.is_file()} == set(OTHERS)
    assert sum(cache.nbytes for cache in caches() if cache.name != "cpu-kernels") == 0


def test_what_numba_compiled_of_this_package_is_ours(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = place.parent / "package"
    (package / "part").mkdir(parents=True)
    (package / "part" / "module.py").touch()
    (folder,) = (each for each in compiled.compiled_folders(package) if each.parent == place.parent / "numba")
    names = "module.twice-1.py311.nbi", "module.twice-1.py311.1.nbc", "module.pyc"
    other = folder.with_name("other_0123")
    for path in (*(folder / name for name in names), other / "theirs.f-1.py311.nbi"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    monkeypatch.setattr(compiled, "compiled_folders", lambda package: [folder])
    (done,) = clear(["cpu-kernels"])
    assert (done.files, done.nbytes) == (2, 2)
    left = {path.name for path in (place.parent / "numba").rglob("*.*")}
    assert left == {"module.pyc", "theirs.f-1.py311.nbi"}


def test_cupys_own_folder_is_never_cleared(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUPY_CACHE_DIR", str(place / "cupy"))
    monkeypatch.setenv("SPARSENN_CACHE", str(place / "other"))
    cache = cache_named("cupy")
    assert (len(cache.files), cache.own) == (1, False)
    (done,) = clear(["cupy"])
    assert (done.files, str(done.left)) == (0, f"other programs that use CuPy share {place / 'cupy'}")
    assert cache.files[0].exists()


def test_an_unknown_cache_is_refused(place: Path) -> None:
    with pytest.raises(UsageError, match=r"unknown cache 'kernel'.*cpu-kernels"):
        clear(["measurements", "kernel"])
    assert (place / "ceilings.json").exists()
