from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparsenn.datasets import NAMES, cache, generate, named, named_file, truth
from sparsenn.datasets.cache import DamagedCacheWarning
from sparsenn.errors import ResourceError
from sparsenn.formats import CSR
from sparsenn.io.dataset import Dataset
from sparsenn.io.hdf5.dataset import read_dataset
from sparsenn.network import Network
from sparsenn.runtime.progress import Progress


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


def put_mnist(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "train-images-idx3-ubyte.gz").write_bytes(b"")


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


def test_files_differ_by_name_and_kind_of_inputs(generator: Generator, tmp_path: Path) -> None:
    digits = named_file("radixnet-1024x120")
    other = named_file("radixnet-1024x480")
    put_mnist(tmp_path / "cache" / "mnist")
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
    with pytest.raises(
        ResourceError,
        match=r"radixnet-65536x1920 needs 10\.\d GB of disk space in .*; 1\.0 GB are free; .*SPARSENN_CACHE",
    ):
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
