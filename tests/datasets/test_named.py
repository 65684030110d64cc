from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparsenn.datasets import NAMES, cache, generate, named, named_file, parse_name, truth
from sparsenn.datasets.cache import DamagedCacheWarning
from sparsenn.errors import ResourceError, UsageError
from sparsenn.formats import CSR
from sparsenn.io.dataset import Dataset
from sparsenn.io.hdf5.dataset import read_dataset
from sparsenn.network import Network
from sparsenn.runtime.progress import Progress


def test_there_are_twelve_names() -> None:
    assert len(set(NAMES)) == 12
    assert parse_name("radixnet-1024x120") == (1024, 120)
    assert parse_name("radixnet-65536x1920") == (65536, 1920)
    assert all(name == "radixnet-{}x{}".format(*parse_name(name)) for name in NAMES)


@pytest.mark.parametrize("name", ["", "radixnet-1024x121", "radixnet-01024x120", "RadixNet-1024x120"])
def test_other_names_are_refused_with_the_choices(name: str) -> None:
    with pytest.raises(UsageError, match=r"unknown dataset.*known: radixnet-1024x120, .*radixnet-65536x480"):
        parse_name(name)


class Generator:
    """Stands in for the real one: small datasets, and a note of what was asked for."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int, str]] = []

    def __call__(self, neurons: int, layers: int, *, inputs: str, truth: bool, **_: Any) -> Dataset:
        self.calls.append((neurons, layers, inputs))
        return generate(256, 2, images=5, bias=-0.1, truth=truth)


@pytest.fixture
def generator(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Generator:
    monkeypatch.delenv("SPARSENN_MNIST", raising=False)
    monkeypatch.setenv("SPARSENN_CACHE", str(tmp_path / "cache"))
    stand_in = Generator()
    monkeypatch.setattr(named, "generate", stand_in)
    return stand_in


def test_generated_once_then_found(generator: Generator, tmp_path: Path) -> None:
    path = named_file("radixnet-4096x480")
    assert path.parent == tmp_path / "cache" / "datasets"
    assert read_dataset(path).inputs.shape == (5, 256)
    assert named_file("radixnet-4096x480") == path
    assert generator.calls == [(4096, 480, "digits")]


def test_an_interrupted_truth_resumes(generator: Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    path = named_file("radixnet-1024x120", truth=False)
    assert read_dataset(path).truth is None
    monkeypatch.setattr(truth, "TRUTH_STEP", 2 * read_dataset(path).network.edges)  # two inputs at a time
    computed, categories = [], truth.reference.categories

    def interrupted(network: Network, inputs: CSR, progress: Progress) -> np.ndarray:
        computed.append(inputs.shape[0])
        if len(computed) == 2:
            raise KeyboardInterrupt
        return categories(network, inputs, progress)

    monkeypatch.setattr(truth.reference, "categories", interrupted)
    with pytest.raises(KeyboardInterrupt):
        named_file("radixnet-1024x120")
    assert named_file("radixnet-1024x120") == path
    assert computed == [2, 2, 2, 1]
    expected = generate(256, 2, images=5, bias=-0.1)
    found = read_dataset(path)
    assert np.array_equal(found.truth, expected.truth)
    assert found.provenance == expected.provenance
    assert len(generator.calls) == 1


@pytest.mark.parametrize("place", [0, 100, 4_000, -4_000, -1])
def test_a_flipped_bit_is_seen_said_and_healed(generator: Generator, place: int) -> None:
    path = named_file("radixnet-1024x120")
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[place] ^= 1
    path.write_bytes(flipped)
    with pytest.warns(DamagedCacheWarning, match=r"radixnet-1024x120-digits-v1\.h5 is damaged: .*; it is made again"):
        assert named_file("radixnet-1024x120") == path
    assert path.read_bytes() == whole
    assert named_file("radixnet-1024x120") == path
    assert len(generator.calls) == 2


def test_files_differ_by_name_and_kind_of_inputs(generator: Generator, tmp_path: Path) -> None:
    digits = named_file("radixnet-1024x120")
    other = named_file("radixnet-1024x480")
    (tmp_path / "cache" / "mnist").mkdir(parents=True)
    (tmp_path / "cache" / "mnist" / "train-images-idx3-ubyte.gz").touch()
    images = named_file("radixnet-1024x120")
    assert len({digits, other, images}) == 3
    assert generator.calls == [(1024, 120, "digits"), (1024, 480, "digits"), (1024, 120, "mnist")]


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
    message = r"radixnet-65536x1920 needs 10\.\d GB of disk space in .*; 1\.0 GB are free; .*SPARSENN_CACHE"
    with pytest.raises(ResourceError, match=message):
        named_file("radixnet-65536x1920")
    assert generator.calls == []
    assert not (tmp_path / "cache").exists()


def test_a_cache_to_read_only_needs_no_record(generator: Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    path = named_file("radixnet-1024x120")
    path.with_name(path.name + ".json").unlink()

    def refused(*_: object) -> None:
        raise ResourceError("read-only")

    monkeypatch.setattr(cache, "write_record", refused)
    assert named_file("radixnet-1024x120") == path
