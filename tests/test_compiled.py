"""What tests compile is kept, and made anew as soon as anything that it depends on has changed."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import compiled as cache
import emulation
import nvrtc
import pytest
from compiled import DAY, MOST_DAYS, compiled, prune

from sparsenn.backends.cuda.conv.warpgroup import LAYING_OUT
from sparsenn.studies.emulation import kernel

DEFINES: dict[str, int | str] = {"INPUT": "float", "KIND": "TENSOR_HALF"}
PARTS = ("compiler 1.0", "-O1", "source")


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with the entries, a new one."""
    monkeypatch.setattr(cache, "_FOLDER", tmp_path / "cache" / "tests")
    return tmp_path / "cache" / "tests"


@pytest.fixture
def forget(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """What a process remembers of emulated kernels is forgotten, as in a new one."""

    def clear() -> None:
        for function in (emulation._emulated, kernel._folder, kernel._compiler, kernel._headers):
            function.cache_clear()

    clear()
    yield clear
    monkeypatch.undo()
    clear()


def made(*parts: str) -> tuple[bytes, bool]:
    """What comes out for some texts, and whether it had to be made."""
    asked = []

    def make() -> bytes:
        asked.append(parts)
        return "|".join(parts).encode() * 100

    return compiled(parts, make), bool(asked)


def entries(folder: Path) -> int:
    return len(list(folder.iterdir()))


def test_what_was_compiled_is_kept(kept: Path) -> None:
    first = made(*PARTS)
    assert first == ("|".join(PARTS).encode() * 100, True)
    assert made(*PARTS) == (first[0], False)
    assert entries(kept) == 1


@pytest.mark.parametrize(
    "other",
    [
        ("compiler 1.1", "-O1", "source"),
        ("compiler 1.0", "-O2", "source"),
        ("compiler 1.0", "-O1", "source "),
        ("compiler 1.0-O1", "", "source"),
        ("compiler 1.0", "-O1source"),
        ("compiler 1.0", "source", "-O1"),
    ],
    ids=str,
)
def test_what_changed_is_compiled_anew(kept: Path, other: tuple[str, ...]) -> None:
    made(*PARTS)
    assert made(*other) == ("|".join(other).encode() * 100, True)
    assert entries(kept) == 2


@pytest.mark.parametrize("fault", ["empty", "cut", "cut in the seal", "bit", "seal", "longer", "another's"])
def test_a_damaged_entry_is_not_trusted(kept: Path, fault: str) -> None:
    right = made(*PARTS)[0]
    (path,) = kept.iterdir()
    content = path.read_bytes()
    made("another")
    (other,) = set(kept.iterdir()) - {path}
    flipped = bytearray(content)
    flipped[-8] ^= 1
    faults = {
        "empty": b"",
        "cut": content[:-5],
        "cut in the seal": content[:20],
        "bit": bytes(flipped),
        "seal": bytes(32) + content[32:],
        "longer": content * 2,
        "another's": other.read_bytes(),
    }
    path.write_bytes(faults[fault])
    assert made(*PARTS) == (right, True)
    assert made(*PARTS) == (right, False)


def test_what_does_not_compile_is_not_kept(kept: Path) -> None:
    def fail() -> bytes:
        raise ValueError("syntax")

    for _ in range(2):
        with pytest.raises(ValueError, match="syntax"):
            compiled(PARTS, fail)
    assert not kept.exists()


def test_many_may_write_the_same_at_once(kept: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda number: made("one", str(number % 3))[0], range(60)))
    assert found == [f"one|{number % 3}".encode() * 100 for number in range(60)]
    assert entries(kept) == 3  # nothing half-written is left
    assert not any(made("one", str(number))[1] for number in range(3))


def test_entries_without_use_go(kept: Path) -> None:
    for name in ("used", "unused"):
        made(name)
    left = kept / ".0123.part"
    left.touch()
    past = time.time() - (MOST_DAYS + 1) * DAY
    for path in kept.iterdir():
        os.utime(path, (past, past))
    assert not made("used")[1]
    prune()
    assert entries(kept) == 1
    assert not left.exists()
    assert (made("used")[1], made("unused")[1]) == (False, True)


def test_where_nothing_can_be_written_all_is_compiled(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prune()  # there is no folder yet
    kept.parent.mkdir()
    kept.touch()  # a file is in the way
    for folder in (kept, None):
        monkeypatch.setattr(cache, "_FOLDER", folder)
        assert made(*PARTS)[1]
        assert made(*PARTS)[1]
        prune()


@pytest.mark.skipif(shutil.which("g++") is None, reason="emulating a kernel takes g++")
def test_an_emulated_kernel_is_compiled_anew_with_its_source_its_defines_and_the_headers(
    kept: Path, forget: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def entries_after(defines: dict[str, int | str], planted: tuple[str, str] = ("", "")) -> int:
        forget()
        emulation.emulated(LAYING_OUT, defines, planted)
        return entries(kept)

    assert entries_after(DEFINES) == 2  # the library, and the header that is compiled beforehand
    assert entries_after(DEFINES) == 2
    assert entries_after(DEFINES, ("#pragma unroll", "#pragma GCC unroll 1")) == 3
    assert entries_after(DEFINES | {"INPUT": "half_bits"}) == 4
    for path in kernel.HEADERS.glob("emulation*.h"):
        shutil.copy(path, kept.parent)
    with (kept.parent / "emulation_barriers.h").open("a") as header:
        header.write("\n")
    monkeypatch.setattr(kernel, "HEADERS", kept.parent)
    assert entries_after(DEFINES) == 6


def test_a_log_is_that_of_the_very_source(kept: Path) -> None:
    pytest.importorskip(
        "cuda.bindings.nvrtc", reason="needs the NVRTC packages of sparsenn[test]", exc_type=ImportError
    )
    source = 'extern "C" __global__ void one(int n, float* out) { out[n] = 1; }'
    first = nvrtc.compile_log(source, "one.cu", "sm_90", ())
    assert nvrtc.compile_log(source, "one.cu", "sm_90", ()) == first
    assert first[0]
    assert entries(kept) == 1
    faulty = source.replace("out[n] = 1", "int unused; out[n] = 1")
    assert "never referenced" in nvrtc.compile_log(faulty, "one.cu", "sm_90", ())[1]
    assert "two.cu" in nvrtc.compile_log(faulty, "two.cu", "sm_90", ())[1]
    nvrtc.compile_log(source, "one.cu", "sm_80", ())
    nvrtc.compile_log(source, "one.cu", "sm_90", ("-std=c++17",))
    assert entries(kept) == 5
    assert not nvrtc.compile_log("not C++", "one.cu", "sm_90", ())[0]
    assert entries(kept) == 5
