from __future__ import annotations

import errno
import gzip
import io
import os
import tarfile
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from file_comparisons import same_dataset, same_matrix

from sparsenn.errors import FileFormatError, InputError, ResourceError, SparseNNError, UsageError
from sparsenn.formats import coo_to_csc, from_dense
from sparsenn.formats.coo import COO
from sparsenn.io import Dataset
from sparsenn.io.challenge.folder import read_official, write_official
from sparsenn.layers import ReLU, Sigmoid, SparseLinear
from sparsenn.network import Network


@pytest.fixture(params=["folder", "compressed folder", "archive"])
def written(request: pytest.FixtureRequest, tmp_path: Path, challenge_like: Dataset) -> Path:
    kind = request.param
    write_official(challenge_like, tmp_path / "d", archive=kind == "archive", compress=kind == "compressed folder")
    return tmp_path / "d"


def layer_names(folder: Path) -> dict[int, Path]:
    return {int(path.name.split("-l")[1].split(".")[0]): path for path in (folder / "neuron8").iterdir()}


def pack(path: Path, members: Iterable[tuple[str, bytes]], **kinds: Any) -> None:
    """Write a tar.gz of these members."""
    with tarfile.open(path, "w:gz") as archive:
        for name, text in members:
            member = tarfile.TarInfo(name)
            member.size = len(text)
            for key, value in kinds.items():
                setattr(member, key, value)
            archive.addfile(member, io.BytesIO(text))


@pytest.fixture
def texts(tmp_path: Path, challenge_like: Dataset) -> dict[str, bytes]:
    """The members of an archive of the small network; its folder is `tmp_path / "d"`."""
    write_official(challenge_like, tmp_path / "d", archive=True)
    with tarfile.open(tmp_path / "d" / "neuron8.tar.gz") as archive:
        return {member.name: archive.extractfile(member).read() for member in archive}


def test_round_trip(written: Path, challenge_like: Dataset) -> None:
    found = read_official(written, bias=-0.3)
    assert set(found.provenance) == {"layout", "inputs", "network", "truth"}
    same_dataset(replace(found, provenance={}), challenge_like)


def test_names_of_what_is_written(written: Path) -> None:
    names = {str(path.relative_to(written)) for path in written.rglob("*") if path.is_file()}
    gz = ".gz" if "sparse-images-8.tsv.gz" in names else ""
    layers = {f"neuron8/n8-l{number}.tsv{gz}" for number in (1, 2, 3)}
    layers = {"neuron8.tar.gz"} if "neuron8.tar.gz" in names else layers
    assert names == {f"sparse-images-8.tsv{gz}", "neuron8-l3-categories.tsv"} | layers


def test_equal_datasets_give_equal_archives(tmp_path: Path, challenge_like: Dataset) -> None:
    for name in ("a", "b"):
        write_official(challenge_like, tmp_path / name, archive=True, compress=True)
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes()


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_first_layers(written: Path, challenge_like: Dataset, layers: int) -> None:
    found = read_official(written, layers=layers, bias=-0.3)
    assert (found.name, len(found.network)) == (f"challenge-8x{layers}", layers)
    same_matrix(found.network[-1].weights, challenge_like.network[layers - 1].weights)
    assert (found.truth is None) == (layers < 3)


@pytest.mark.parametrize(("limit", "truth"), [(1, [0]), (3, [0]), (4, [0, 3]), (6, [0, 3, 5]), (99, [0, 3, 5])])
def test_first_inputs(written: Path, challenge_like: Dataset, limit: int, truth: list[int]) -> None:
    found = read_official(written, bias=-0.3, limit_inputs=limit)
    same_matrix(found.inputs, challenge_like.inputs.slice_groups(0, min(limit, 6)))
    assert found.truth.tolist() == truth


def test_without_truth_images_end_with_the_last_that_has_a_pixel(tmp_path: Path, challenge_like: Dataset) -> None:
    write_official(challenge_like, tmp_path / "d")
    (tmp_path / "d" / "neuron8-l3-categories.tsv").unlink()
    found = read_official(tmp_path / "d", bias=-0.3)
    assert (found.truth, found.inputs.shape) == (None, (4, 8))
    assert "truth" not in found.provenance


def first_inputs(dataset: Dataset, count: int, truth: list[int] | None) -> Dataset:
    categories = None if truth is None else np.array(truth, np.int64)
    return replace(dataset, inputs=dataset.inputs.slice_groups(0, count), truth=categories)


@pytest.mark.parametrize("bias", [-0.3, 0.25])
@pytest.mark.parametrize(
    ("count", "truth", "lost"),
    [
        (6, None, 2),
        (6, [], 2),
        (6, [0, 4], 1),
        (5, None, 1),
        (6, [5], 0),
        (5, [4], 0),
        (4, None, 0),
        (3, [0], 1),
        (2, [0], 0),
    ],
)
def test_inputs_without_a_pixel_at_the_end_are_not_lost_in_silence(
    tmp_path: Path, challenge_like: Dataset, bias: float, count: int, truth: list[int] | None, lost: int
) -> None:
    dataset = first_inputs(challenge_like, count, truth)
    dataset = replace(dataset, network=dataset.network.with_bias(bias))
    if lost:
        with pytest.raises(UsageError, match=f"the last {lost} of {count} inputs have no pixel; .*write HDF5 instead"):
            write_official(dataset, tmp_path / "d")
        assert list(tmp_path.iterdir()) == []
    else:
        write_official(dataset, tmp_path / "d")
        assert read_official(tmp_path / "d", bias=bias).inputs.shape == dataset.inputs.shape


def test_depth_is_the_largest_that_is_known_and_complete(written: Path) -> None:
    for depth in (1, 2, 480):
        (written / f"neuron8-l{depth}-categories.tsv").write_text("1\n")
    assert len(read_official(written, bias=-0.3).network) == 3
    (written / "neuron8-l3-categories.tsv").unlink()
    assert len(read_official(written, bias=-0.3).network) == 2
    for file in written.glob("*categories*"):
        file.unlink()
    assert len(read_official(written, bias=-0.3).network) == 3


def test_bias_must_be_given_where_the_challenge_sets_none(written: Path) -> None:
    with pytest.raises(UsageError, match="sets no bias for 8 neurons"):
        read_official(written)
    with pytest.raises(SparseNNError, match="bias"):
        read_official(written, bias=float("nan"))


@pytest.mark.parametrize(
    ("layers", "message"),
    [(4, "n8-l4.tsv: layer 4 is missing; 4 layers are needed, 3 are there"), (0, "layers to read is 0")],
)
def test_more_layers_than_there_are(written: Path, layers: int, message: str) -> None:
    with pytest.raises(SparseNNError, match=message):
        read_official(written, layers=layers, bias=-0.3)


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("with_truth", [False, True])
@pytest.mark.parametrize("layers", [None, 3])
def test_missing_layer_is_named(
    tmp_path: Path, challenge_like: Dataset, number: int, with_truth: bool, layers: int | None
) -> None:
    write_official(challenge_like if with_truth else first_inputs(challenge_like, 4, None), tmp_path / "d")
    layer_names(tmp_path / "d")[number].unlink()
    if not with_truth and layers is None and number == 3:
        assert len(read_official(tmp_path / "d", bias=-0.3).network) == 2
        return
    with pytest.raises(InputError, match=rf"neuron8/n8-l{number}\.tsv: layer {number} is missing"):
        read_official(tmp_path / "d", layers=layers, bias=-0.3)


def test_fault_in_a_layer_is_named(written: Path) -> None:
    if (written / "neuron8").is_dir():
        path = layer_names(written)[2]
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).replace(b"\n8\t", b"\n9\t", 1)
        path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
        expected = str(path)
    else:
        with tarfile.open(written / "neuron8.tar.gz") as archive:
            members = {member.name: archive.extractfile(member).read() for member in archive}
        members["neuron8/n8-l2.tsv"] = members["neuron8/n8-l2.tsv"].replace(b"\n8\t", b"\n9\t", 1)
        pack(written / "neuron8.tar.gz", members.items())
        expected = f"{written}/neuron8.tar.gz/n8-l2.tsv"
    with pytest.raises(FileFormatError, match=r":\d+: input neuron 9 is outside 1\.\.8") as caught:
        read_official(written, bias=-0.3)
    assert str(caught.value).startswith(f"{expected}:")


def test_order_of_an_archive_does_not_matter(tmp_path: Path, texts: dict[str, bytes], challenge_like: Dataset) -> None:
    other = {"./neuron8/": b"", "neuron8/README": b"text", "neuron8/n8-l7.tsv.gz": b"", "._n8-l1.tsv": b"?"}
    turned = [(f"./{name}", text) for name, text in reversed(texts.items())]
    pack(tmp_path / "d" / "neuron8.tar.gz", [*other.items(), *turned])
    found = read_official(tmp_path / "d", bias=-0.3)
    np.testing.assert_array_equal(found.network[0].weights.indices, challenge_like.network[0].weights.indices)
    assert len(found.network) == 3


@pytest.mark.parametrize(
    ("name", "kinds", "message"),
    [
        ("../n8-l1.tsv", {}, "not a plain file inside the archive"),
        ("/etc/n8-l1.tsv", {}, "not a plain file inside the archive"),
        ("neuron8/n8-l1.tsv", {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd", "size": 0}, "not a plain file"),
        (
            "neuron8/n8-l1.tsv",
            {"type": tarfile.LNKTYPE, "linkname": "neuron8/n8-l2.tsv", "size": 0},
            "not a plain file",
        ),
        ("neuron8/n8-l1.tsv", {"type": tarfile.FIFOTYPE, "size": 0}, "not a plain file"),
        ("neuron8/n8-l1.tsv", {"type": tarfile.DIRTYPE, "size": 0}, "not a plain file"),
        ("neuron16/n16-l1.tsv", {}, "a layer of 16 neurons, among layers of 8"),
    ],
)
def test_hostile_members(
    tmp_path: Path, texts: dict[str, bytes], name: str, kinds: dict[str, Any], message: str
) -> None:
    pack(tmp_path / "d" / "neuron8.tar.gz", [(name, texts["neuron8/n8-l1.tsv"])], **kinds)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(FileFormatError, match=message):
        read_official(tmp_path / "d", bias=-0.3)
    assert sorted(tmp_path.rglob("*")) == before


def test_bomb_in_an_archive(tmp_path: Path, texts: dict[str, bytes]) -> None:
    pack(tmp_path / "d" / "neuron8.tar.gz", [("neuron8/zeros", bytes(1 << 25)), *texts.items()])
    with pytest.raises(FileFormatError, match=r"inflates from .* bytes to more than the 16,777,216"):
        read_official(tmp_path / "d", bias=-0.3)


def damage(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(gzip.compress(change(gzip.decompress(path.read_bytes()))))


@pytest.mark.parametrize(
    "change",
    [
        lambda tar: b"",
        lambda tar: b"not a tar archive",
        lambda tar: tar[:300],
        lambda tar: tar[:700],
        lambda tar: tar[:1024],
        lambda tar: tar[:1100],
        lambda tar: tar[:1024] + b"x" + tar[1025:],
    ],
    ids=["empty", "text", "half a header", "half a member", "no end", "half a second header", "damaged second header"],
)
@pytest.mark.parametrize("with_truth", [False, True])
def test_damaged_archives(
    tmp_path: Path, texts: dict[str, bytes], change: Callable[[bytes], bytes], with_truth: bool
) -> None:
    if not with_truth:
        (tmp_path / "d" / "neuron8-l3-categories.tsv").unlink()
    damage(tmp_path / "d" / "neuron8.tar.gz", change)
    with pytest.raises(FileFormatError, match=r"neuron8\.tar\.gz: not a tar archive, or damaged"):
        read_official(tmp_path / "d", bias=-0.3)


def changed(dataset: Dataset, **parts: Any) -> Dataset:
    """The dataset with its second layer changed."""
    layers = list(dataset.network)
    layers[1] = replace(layers[1], **parts)
    return replace(dataset, network=Network(tuple(layers)))


def test_what_the_layout_cannot_hold(tmp_path: Path, challenge_like: Dataset) -> None:
    none = np.empty(0, np.uint16)
    empty = coo_to_csc(COO((8, 8), none, none, np.ones(1, np.float32)))
    narrow = SparseLinear(
        coo_to_csc(COO.from_arrays((8, 7), np.array([1]), np.array([1]), np.ones(1))), -0.3, ReLU(32.0)
    )
    for dataset, message in (
        (changed(challenge_like, activation=Sigmoid()), "layer 2 has the activation sigmoid"),
        (changed(challenge_like, activation=ReLU()), "layer 2 has the activation relu"),
        (changed(challenge_like, bias=-0.2), r"layer 2 has as its bias -0\.2, not -0\.3"),
        (changed(challenge_like, bias=np.full(8, -0.3, np.float32)), "layer 2 has as its bias a vector"),
        (changed(challenge_like, weights=empty), "layer 2 has no weights"),
        (replace(challenge_like, network=Network((*challenge_like.network, narrow))), "layer 4 is 8 x 7, not square"),
        (replace(challenge_like, inputs=from_dense(np.zeros((6, 8)))), "the inputs have no entry"),
    ):
        with pytest.raises(
            UsageError, match=f"{message}.*; the official layout cannot express that; write HDF5 instead"
        ):
            write_official(dataset, tmp_path / "d")
    assert list(tmp_path.iterdir()) == []


def test_bias_must_be_the_challenges_where_it_sets_one(tmp_path: Path) -> None:
    diagonal = np.arange(1024)
    weights = coo_to_csc(COO.from_arrays((1024, 1024), diagonal, diagonal, np.ones(1024, np.float32)))
    network = Network((SparseLinear(weights, -0.25, ReLU(32.0)),))
    dataset = Dataset("d", network, from_dense(np.ones((1, 1024))))
    with pytest.raises(UsageError, match=r"layer 1 has as its bias -0\.25, not -0\.3"):
        write_official(dataset, tmp_path / "d")
    write_official(replace(dataset, network=network.with_bias(-0.3)), tmp_path / "d")
    assert read_official(tmp_path / "d").network[0].bias == -0.3


def test_failure_while_writing_leaves_nothing(
    tmp_path: Path, challenge_like: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = iter([None, None, None, OSError(errno.ENOSPC, "No space left on device")])

    def fail(descriptor: int) -> None:
        if (planted := next(results)) is not None:
            raise planted

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(ResourceError, match=r"d/sparse-images-8\.tsv: the disk is full"):
        write_official(challenge_like, tmp_path / "d")
    assert list(tmp_path.iterdir()) == []


def test_official_network_read_straight_from_its_archives(official_folder: Path) -> None:
    dataset = read_official(official_folder)
    assert (dataset.name, len(dataset.network)) == ("challenge-1024x120", 120)
    assert dataset.inputs.shape == (1200, 1024)
    assert dataset.truth.size == 19
    assert dataset.truth[[0, -1]].tolist() == [286, 1199]
    for layer in dataset.network:
        weights = layer.weights.validate()
        assert weights.shape == (1024, 1024)
        assert (np.diff(weights.indptr) == 32).all()
        assert (np.bincount(weights.indices, minlength=1024) == 32).all()
        assert weights.values.tolist() == [0.0625]
        assert (layer.bias, layer.activation) == (-0.3, ReLU(32.0))
