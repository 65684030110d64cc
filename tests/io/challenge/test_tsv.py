from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from file_comparisons import Corrupted, refused_at, same_matrix
from hypothesis import assume, given
from strategies import csc_matrices, csr_matrices

from sparsenn.errors import FileFormatError
from sparsenn.formats import CSC, CSR, coo_to_csc
from sparsenn.io.challenge import text, tsv

LAYER = b"1\t1\t0.5\n3\t1\t-1\n2\t3\t0.25\n"


@given(csr_matrices())
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_images_round_trip(tmp_path_factory, suffix: str, images: CSR) -> None:
    assume(images.nnz)
    path = tmp_path_factory.mktemp("tsv") / f"sparse-images-9.tsv{suffix}"
    tsv.write_images(path, images)
    same_matrix(tsv.read_images(path, images.shape[1], inputs=images.shape[0]), images)
    rows = 1 + int(np.flatnonzero(np.diff(images.indptr))[-1])
    same_matrix(tsv.read_images(path, images.shape[1]), images.slice_groups(0, rows))


@given(csc_matrices())
def test_layer_round_trip(tmp_path_factory, weights: CSC) -> None:
    assume(weights.nnz)
    folder = tmp_path_factory.mktemp("tsv")
    for name in ("n9-l1.tsv", "n9-l1.tsv.gz"):
        tsv.write_layer(folder / name, weights)
        same_matrix(tsv.read_layer(folder / name, weights.shape), weights)
    same_matrix(coo_to_csc(tsv.read_triples(folder / "n9-l1.tsv", weights.shape)), weights)
    assert (folder / "n9-l1.tsv").read_bytes() == tsv.format_layer(weights)


def test_hand_made_layer(corrupted: Corrupted) -> None:
    weights = tsv.read_layer(corrupted(LAYER), (4, 3)).validate()
    dense = weights.to_scipy().toarray()
    np.testing.assert_array_equal(dense, [[0.5, 0, 0], [0, 0, 0.25], [-1, 0, 0], [0, 0, 0]])
    assert weights.values.dtype == np.float32
    assert tsv.format_layer(weights) == LAYER


def test_equal_values_are_stored_once(corrupted: Corrupted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "_CHUNK", 20)
    ones = b"".join(b"%d\t%d\t1\n" % (at, at) for at in range(1, 40))
    assert tsv.read_layer(corrupted(ones), (40, 40)).values.tolist() == [1]
    mixed = ones + b"40\t40\t2\n"
    assert tsv.read_layer(corrupted(mixed), (40, 40)).values.tolist() == [1] * 39 + [2]
    late = ones.replace(b"\t1\n", b"\t0.1\n").replace(b"20\t20\t0.1", b"20\t20\t0.2")
    assert tsv.read_layer(corrupted(late), (40, 40)).values.tolist().count(np.float32(0.2)) == 1


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 6, 100])
def test_first_images_only(corrupted: Corrupted, limit: int) -> None:
    path = corrupted(b"6\t2\t1\n1\t1\t0.5\n5\t5\t1\n1\t3\t1\n3\t4\t2\n")
    whole = tsv.read_images(path, 5)
    assert whole.shape == (6, 5)
    same_matrix(tsv.read_images(path, 5, limit_inputs=limit), whole.slice_groups(0, min(limit, 6)))
    same_matrix(tsv.read_images(path, 5, inputs=6, limit_inputs=limit), whole.slice_groups(0, min(limit, 6)))


@pytest.mark.parametrize("again", [b"1\t1\t0.5\n", b"3\t1\t7\n"])
@pytest.mark.parametrize("chunk", [1 << 24, 8])
def test_duplicates_are_named(corrupted: Corrupted, again: bytes, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "_CHUNK", chunk)
    path = corrupted(LAYER + again + b"4\t2\t1\n")
    for read in (tsv.read_layer, tsv.read_triples):
        with pytest.raises(FileFormatError, match=r"file\.tsv: .* \d, .* \d occurs twice"):
            read(path, (4, 3))
    with pytest.raises(FileFormatError, match=r"file\.tsv: image \d, pixel 1 occurs twice"):
        tsv.read_images(path, 3)


@pytest.mark.parametrize(
    ("data", "line", "message"),
    [
        (b"1\t1\t1\n0\t1\t1\n", 2, "input neuron 0 is outside 1..4"),
        (b"1\t4\t1\n", 1, "output neuron 4 is outside 1..3"),
        (b"3000000000\t1\t1\n", 1, "input neuron 3000000000 is outside"),
        (b"1\t1\t1e400\n", 1, "weight inf is not finite in float32"),
        (LAYER[:-1], 3, "has no line end"),
        (LAYER[:-5], 3, "has no line end"),
        (LAYER + b"4\t3\n", 4, "xpected 3 columns, got 2"),
        (b"", 1, "is empty; each line must hold input neuron, output neuron, weight, separated by tabs"),
    ],
)
@pytest.mark.parametrize("name", ["n4-l1.tsv", "n4-l1.tsv.gz"])
def test_faulty_layers(corrupted: Corrupted, name: str, data: bytes, line: int, message: str) -> None:
    path = corrupted(gzip.compress(data) if name.endswith("gz") else data, name)
    refused_at(lambda path: tsv.read_layer(path, (4, 3)), path, line, re.escape(message))


def test_windows_text_with_byte_order_mark(corrupted: Corrupted) -> None:
    data = b"\xef\xbb\xbf" + LAYER.replace(b"\n", b"\r\n")
    same_matrix(tsv.read_layer(corrupted(data), (4, 3)), tsv.parse_layer(LAYER, "x", (4, 3)))


def test_gzip_bomb_is_bounded_by_the_shape(corrupted: Corrupted) -> None:
    path = corrupted(gzip.compress(b"1\t1\t1\n" * 10_000), "file.tsv.gz")
    with pytest.raises(FileFormatError, match=r"inflates from .* bytes to more than the 832 bytes"):
        tsv.read_layer(path, (4, 3))
    with pytest.raises(FileFormatError, match=r"inflates from .* bytes to more than the 832 bytes"):
        tsv.read_images(path, 3, inputs=4)


@pytest.mark.parametrize(
    "read", [lambda path: tsv.read_images(path, 5), lambda path: tsv.read_layer(path, (2**31 - 1, 5))]
)
def test_almost_empty_but_enormous_matrix_is_refused(corrupted: Corrupted, read: Callable[[Path], Any]) -> None:
    with pytest.raises(FileFormatError, match=r"2,147,483,647 (images|neurons) for 1 entries"):
        read(corrupted(b"2147483647\t1\t1\n"))


def test_the_line_of_an_enormous_number_of_images_is_named(corrupted: Corrupted) -> None:
    with pytest.raises(FileFormatError, match=r"file.tsv:2: 2,147,483,647 images for 3 entries"):
        tsv.read_images(corrupted(b"1\t1\t1\n2147483647\t1\t1\n2\t1\t1\n"), 5)


@pytest.mark.parametrize("name", ["c.tsv", "c.tsv.gz"])
@pytest.mark.parametrize("categories", [[], [0], [5, 3, 2147483646, 0]])
def test_categories_round_trip(tmp_path: Path, name: str, categories: list[int]) -> None:
    tsv.write_categories(tmp_path / name, np.array(categories, np.int64))
    found = tsv.read_categories(tmp_path / name)
    assert found.dtype == np.int64
    assert found.tolist() == sorted(categories)


def test_categories_count_from_one_in_the_file(tmp_path: Path, corrupted: Corrupted) -> None:
    tsv.write_categories(tmp_path / "c.tsv", np.array([11, 0]))
    assert (tmp_path / "c.tsv").read_bytes() == b"1\n12\n"
    assert tsv.read_categories(corrupted(b"\xef\xbb\xbf12\r\n1\r\n")).tolist() == [0, 11]


@pytest.mark.parametrize(
    ("data", "line", "message"),
    [
        (b"1\n0\n", 2, "category 0 is outside"),
        (b"1\n-4\n", 2, "category -4 is outside"),
        (b"3000000000\n", 1, "category 3000000000 is outside"),
        (b"1\n2.5\n", 2, "category: "),
        (b"1\ny\n", 2, "category: "),
        (b"1\n\n2\n", 2, "a line must hold category"),
        (b"1\t1\n", 1, "xpected 1 columns, got 2"),
        (b"7\n3\n5\n3\n", None, "category 3 occurs twice"),
        (b"1\n12", 2, "has no line end"),
    ],
)
def test_faulty_categories(corrupted: Corrupted, data: bytes, line: int | None, message: str) -> None:
    with pytest.raises(FileFormatError) as caught:
        tsv.read_categories(corrupted(data))
    assert caught.value.line == line
    assert message in str(caught.value)


def test_official_images_as_they_are(official_folder: Path, tmp_path: Path) -> None:
    images = tsv.read_images(official_folder / "sparse-images-1024.tsv.gz", 1024)
    assert images.shape == (1200, 1024)
    assert images.nnz == 122_713
    assert images.values.tolist() == [1.0]
    tsv.write_images(tmp_path / "again.tsv", images)
    official = gzip.decompress((official_folder / "sparse-images-1024.tsv.gz").read_bytes())
    assert (tmp_path / "again.tsv").read_bytes() == official
