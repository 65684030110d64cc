from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from sparsenn.datasets import NAMES, cache, generate, named, named_file
from sparsenn.datasets.cache import DamagedCacheWarning
from sparsenn.errors import FileFormatError, ResourceError, UsageError
from sparsenn.io.dataset import Dataset
from sparsenn.io.hdf5.dataset import read_dataset
from sparsenn.runtime import memory
from sparsenn.runtime.storage import remove_stale


class Generator:
    """Stands in for the real one: small datasets, and a note of what was asked for."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int, str]] = []

    def __call__(self, neurons: int, layers: int, *, inputs: str, **_: Any) -> Dataset:
        self.calls.append((neurons, layers, inputs))
        return generate(256, 2, images=5, bias=-0.1)


@pytest.fixture
def generator(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Generator:
    monkeypatch.delenv("SPARSENN_MNIST", raising=False)
    monkeypatch.setenv("SPARSENN_CACHE", str(tmp_path / "cache"))
    stand_in = Generator()
    monkeypatch.setattr(named, "generate", stand_in)
    return stand_in


def put_mnist(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "train-images-idx3-ubyte.gz").write_bytes(b"")


def test_generated_once_then_found(generator: Generator, tmp_path: Path) -> None:
    path = named_file("radixnet-4096x480")
    assert path.parent == tmp_path / "cache" / "datasets"
    assert read_dataset(path).inputs.shape == (5, 256)
    assert named_file("radixnet-4096x480") == path
    assert generator.calls == [(4096, 480, "digits")]


def flipped(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place % len(data)] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("place", [0, 100, 4_000, -4_000, -1])
def test_a_flipped_bit_is_seen_said_and_healed(generator: Generator, place: int) -> None:
    path = named_file("radixnet-1024x120")
    whole = path.read_bytes()
    flipped(path, place)
    with pytest.warns(DamagedCacheWarning, match=r"radixnet-1024x120-digits-v1\.h5 is damaged: .*; it is made again"):
        assert named_file("radixnet-1024x120") == path
    assert path.read_bytes() == whole
    assert named_file("radixnet-1024x120") == path
    assert len(generator.calls) == 2


@pytest.mark.parametrize("left", [0, 100, -1])
def test_a_truncated_file_is_made_again(generator: Generator, left: int) -> None:
    path = named_file("radixnet-1024x120")
    whole = path.read_bytes()
    path.write_bytes(whole[:left])
    with pytest.warns(DamagedCacheWarning):
        named_file("radixnet-1024x120")
    assert path.read_bytes() == whole


@pytest.mark.parametrize("record", ["", "{}", "[1]", '{"version": 1, "crc32": 5}', '{"version": 1}'])
def test_a_damaged_record_has_the_file_made_again(generator: Generator, record: str) -> None:
    path = named_file("radixnet-1024x120")
    path.with_name(path.name + ".json").write_text(record)
    with pytest.warns(DamagedCacheWarning):
        named_file("radixnet-1024x120")
    named_file("radixnet-1024x120")
    assert len(generator.calls) == 2


def test_a_file_from_before_there_were_checksums_gets_one(generator: Generator) -> None:
    path = named_file("radixnet-1024x120")
    record = path.with_name(path.name + ".json")
    before = record.read_text()
    record.unlink()
    assert named_file("radixnet-1024x120") == path
    assert record.read_text() == before
    assert len(generator.calls) == 1


def test_a_cache_to_read_only_needs_no_record(generator: Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    path = named_file("radixnet-1024x120")
    path.with_name(path.name + ".json").unlink()

    def refused(*_: object) -> None:
        raise ResourceError("read-only")

    monkeypatch.setattr(cache, "write_record", refused)
    assert named_file("radixnet-1024x120") == path


def test_damaged_inputs_of_the_challenge_do_not_become_digits(generator: Generator, tmp_path: Path) -> None:
    put_mnist(tmp_path / "cache" / "mnist")
    path = named_file("radixnet-1024x120")
    flipped(path, 100)
    (tmp_path / "cache" / "mnist" / "train-images-idx3-ubyte.gz").unlink()
    with pytest.raises(FileFormatError, match=r"is damaged: .* MNIST is not available to make it again; remove it"):
        named_file("radixnet-1024x120")
    assert len(generator.calls) == 1


@pytest.mark.parametrize("size", [0, 1, 10, 11, 25])
def test_the_checksum_sees_every_byte_and_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(cache, "_BLOCK", 5)
    path = tmp_path / "file"
    data = bytes(range(size))
    variants = {data, data + b"\0", data[5:10] + data[:5] + data[10:]}
    variants |= {data[:place] + b"x" + data[place + 1 :] for place in range(size)}
    found = set()
    for variant in variants:
        path.write_bytes(variant)
        found.add(cache._checksum(path))
    assert len(found) == len(variants)


def test_files_differ_by_name_and_kind_of_inputs(generator: Generator, tmp_path: Path) -> None:
    digits = named_file("radixnet-1024x120")
    other = named_file("radixnet-1024x480")
    put_mnist(tmp_path / "cache" / "mnist")
    images = named_file("radixnet-1024x120")
    assert len({digits, other, images}) == 3
    assert generator.calls == [(1024, 120, "digits"), (1024, 480, "digits"), (1024, 120, "mnist")]


def test_the_challenges_inputs_stay_in_use_when_mnist_is_gone(generator: Generator, tmp_path: Path) -> None:
    put_mnist(tmp_path / "cache" / "mnist")
    images = named_file("radixnet-1024x120")
    (tmp_path / "cache" / "mnist" / "train-images-idx3-ubyte.gz").unlink()
    assert named_file("radixnet-1024x120") == images


def test_a_failure_leaves_no_file(generator: Generator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupted(*_: object, **__: object) -> Dataset:
        raise KeyboardInterrupt

    monkeypatch.setattr(named, "generate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        named_file("radixnet-1024x120")
    assert not list((tmp_path / "cache" / "datasets").iterdir())


@pytest.mark.parametrize("name", NAMES)
def test_the_room_asked_for_holds_the_dataset(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """At least the bytes of 16-bit indices at the official density, at most twice that."""
    asked: list[int] = []
    monkeypatch.setattr(named, "check_disk", lambda folder, needed, *_: asked.append(needed))
    monkeypatch.setattr(named, "check_memory", lambda needed, *_: asked.append(needed))
    named._check_room(name, tmp_path)
    neurons, layers = map(int, name.removeprefix("radixnet-").split("x"))
    least = layers * neurons * 32 * 2 + int(60_000 * neurons * 0.104) * 2
    assert all(least < needed < 2 * least for needed in asked)
    assert len(asked) == 2


def test_too_little_disk_space_is_said_first(
    generator: Generator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 10**9}))
    with pytest.raises(
        ResourceError,
        match=r"radixnet-65536x1920 needs 10\.\d GB of disk space in .*; 1\.0 GB are free; .*SPARSENN_CACHE",
    ):
        named_file("radixnet-65536x1920")
    assert generator.calls == []
    assert not (tmp_path / "cache").exists()


def test_too_little_memory_is_said_first(generator: Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda: 10**6)
    with pytest.raises(ResourceError, match=r"radixnet-1024x120 needs .* of memory; 1\.0 MB are available"):
        named_file("radixnet-1024x120")
    assert generator.calls == []


def test_a_cache_that_cannot_be_made_is_said(
    generator: Generator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SPARSENN_CACHE", str(tmp_path / "file"))
    with pytest.raises(ResourceError, match=r"cannot make .*file/datasets: .*; set SPARSENN_CACHE"):
        named_file("radixnet-1024x120")


def test_other_names_are_refused(generator: Generator) -> None:
    with pytest.raises(UsageError, match="unknown dataset 'radixnet'"):
        named_file("radixnet")


def test_a_cache_that_cannot_be_written_to_is_refused_before_the_work(
    generator: Generator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    (tmp_path / "cache" / "datasets").mkdir(parents=True)
    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(ResourceError, match=r"cannot write .*: the file system is read-only; .*; set SPARSENN_CACHE"):
        named_file("radixnet-1024x120")
    assert generator.calls == []


def test_what_was_left_in_the_cache_goes_also_where_the_dataset_is_there(generator: Generator, tmp_path: Path) -> None:
    left = named_file("radixnet-1024x120").with_name(".sparsenn-0123456789abcdef.part")
    left.write_text("half")
    remove_stale.cache_clear()
    named_file("radixnet-1024x120")
    assert not left.exists()
