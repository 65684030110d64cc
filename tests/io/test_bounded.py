from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import numpy as np
import pytest
from file_comparisons import Corrupted
from hypothesis import given
from hypothesis import strategies as st

from sparsenn.errors import FileFormatError
from sparsenn.io.bounded import Source


def read_all(path: Path, step: int = 1000, **bounds: int | None) -> bytes:
    pieces = []
    with Source(path, **bounds) as source:
        while piece := source.read(step):
            assert len(piece) <= step
            pieces.append(piece)
        assert source.consumed == source.size == path.stat().st_size
    assert all(len(piece) == step for piece in pieces[:-1])
    return b"".join(pieces)


def noise(size: int) -> bytes:
    return np.random.default_rng(size).bytes(size)


@pytest.mark.parametrize("size", [0, 1, 999, 1000, 5001])
@pytest.mark.parametrize("name", ["file.bin", "file.bin.gz"])
def test_gives_what_was_written(corrupted: Corrupted, name: str, size: int) -> None:
    data = noise(size)
    assert read_all(corrupted(gzip.compress(data) if name.endswith("gz") else data, name)) == data


@given(st.lists(st.integers(0, 3000), max_size=4), st.integers(1, 4000))
def test_members_and_padding(tmp_path_factory, sizes: list[int], step: int) -> None:
    path = tmp_path_factory.mktemp("gz") / "many.gz"
    parts = [noise(size) for size in sizes] or [b"one"]
    path.write_bytes(
        b"".join(gzip.compress(part) + b"\0" * (size % 5) for part, size in zip(parts, [*sizes, 0], strict=False))
    )
    assert read_all(path, step) == b"".join(parts)


@pytest.mark.parametrize("kept", [0, 2, 9, 10, 500, -9, -8, -1])
def test_truncated_gzip(corrupted: Corrupted, kept: int) -> None:
    data = gzip.compress(noise(1000))
    with pytest.raises(FileFormatError, match=r"file\.gz: .*truncated"):
        read_all(corrupted(data[:kept], "file.gz"))


@pytest.mark.parametrize(
    "data",
    [b"plain text", gzip.compress(b"x" * 99)[:-8] + bytes(8), gzip.compress(b"x") + b"trailing", zlib.compress(b"x")],
    ids=["not gzip", "wrong checksum", "trailing bytes", "zlib"],
)
def test_damaged_gzip(corrupted: Corrupted, data: bytes) -> None:
    with pytest.raises(FileFormatError, match="not gzip, or damaged"):
        read_all(corrupted(data, "file.gz"))


def test_bomb_is_refused_before_it_fills_the_memory(corrupted: Corrupted) -> None:
    path = corrupted(gzip.compress(bytes(1 << 26), 9), "bomb.gz")
    source = Source(path)
    with pytest.raises(FileFormatError, match=r"inflates .* 16,777,216"), source:
        list(iter(lambda: source.read(1 << 20), b""))
    assert source._count <= (16 << 20) + (1 << 20)
