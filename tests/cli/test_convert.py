"""`sparsenn challenge convert`: there and back gives the same, and what cannot be is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from command_line import Refused, Run
from file_comparisons import same_dataset

from sparsenn.formats import coo_to_csr
from sparsenn.io import Dataset, read_dataset, read_matrix_market, read_official, read_triples, write_dataset
from sparsenn.layers import Sigmoid, SparseLinear
from sparsenn.network import Network


@pytest.mark.parametrize("form", [(), ("--archive",), ("--compress",)])
def test_there_and_back(run: Run, dataset: Dataset, problem: Path, tmp_path: Path, form: tuple[str, ...]) -> None:
    run("challenge", "convert", problem, tmp_path / "folder", *form)
    back = run("challenge", "convert", tmp_path / "folder", tmp_path / "back.h5")
    found = read_dataset(tmp_path / "back.h5")
    same_dataset(replace(found, name=dataset.name, provenance=dataset.provenance), dataset)
    assert "196,608" in back.stdout
    names = {path.name for path in (tmp_path / "folder").iterdir()}
    assert ("neuron1024.tar.gz" in names) == ("--archive" in form)
    assert ("sparse-images-1024.tsv.gz" in names) == ("--compress" in form)


def test_a_part_of_a_dataset(run: Run, folder: Path, dataset: Dataset, tmp_path: Path) -> None:
    target = tmp_path / "part.h5"
    run("challenge", "convert", folder, target, "--limit-inputs", 20, "--neurons", 1024)
    part = read_dataset(target)
    assert part.inputs.shape[0] == 20
    assert np.array_equal(part.truth, dataset.truth[dataset.truth < 20])
    shorter = ("--layers", 2, "--bias", -0.2)
    run("challenge", "convert", target, tmp_path / "two.h5", *shorter)
    two = read_dataset(tmp_path / "two.h5")
    assert (len(two.network), two.network[0].bias, two.truth, target.exists()) == (2, -0.2, None, True)


def test_into_a_folder_that_holds_others(run: Run, refused: Refused, problem: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    run("challenge", "convert", problem, tmp_path)
    assert len(read_official(tmp_path).network) == 6
    refused(("challenge", "convert", problem, tmp_path), "is there already")
    assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_one_matrix_there_and_back(run: Run, folder: Path, tmp_path: Path, suffix: str) -> None:
    layer = folder / "neuron1024" / "n1024-l2.tsv"
    market, back = tmp_path / f"layer.mtx{suffix}", tmp_path / f"back.tsv{suffix}"
    run("challenge", "convert", layer, market, "--shape", "1024x1024")
    run("challenge", "convert", market, back)
    expected = coo_to_csr(read_triples(layer, (1024, 1024)))
    for matrix in (read_matrix_market(market), read_triples(back, (1024, 1024))):
        found = coo_to_csr(matrix)
        assert np.array_equal(found.indptr, expected.indptr)
        assert np.array_equal(found.indices, expected.indices)
    if not suffix:
        assert back.read_text() == layer.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("none.h5", "out.h5"), "none.h5"),
        (("{problem}", "out.csv"), "use .h5, .hdf5"),
        (("{problem}", "none/out.h5"), "the folder none does not exist"),
        (("{problem}", "out.h5", "--archive"), "--archive has no meaning for HDF5"),
        (("{problem}", "out.h5", "--shape", "3x3"), "--shape has no meaning for a dataset"),
        (("{problem}", "out.h5", "--layers", "9"), "9"),
        (("{layer}", "out.mtx"), "--shape is missing"),
        (("{layer}", "out.mtx", "--shape", "1000x1000"), "n1024-l2.tsv:"),
        (
            ("{layer}", "out.mtx", "--shape", "10x10"),
            "a matrix of 10 × 10 could need; refused: the shape may be too small",
        ),
        (("{layer}", "out.h5", "--shape", "1024x1024"), "use .mtx, .tsv, .mtx.gz, .tsv.gz"),
        (("bad.mtx", "out.tsv", "--shape", "3x3"), "--shape has no meaning for Matrix Market"),
    ],
)
def test_bad_input_is_refused_and_leaves_no_file(
    refused: Refused, problem: Path, folder: Path, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    (tmp_path / "bad.mtx").write_text("%%MatrixMarket matrix coordinate real general\n3 3 2\n1 1 1\n")
    names = {"problem": problem, "layer": folder / "neuron1024" / "n1024-l2.tsv"}
    refused(("challenge", "convert", *(argument.format(**names) for argument in arguments)), message)


def test_what_the_official_layout_cannot_hold(refused: Refused, dataset: Dataset, tmp_path: Path) -> None:
    layers = [SparseLinear(layer.weights, layer.bias, Sigmoid()) for layer in dataset.network]
    write_dataset(Dataset("sigmoid", Network(tuple(layers)), dataset.inputs), tmp_path / "sigmoid.h5")
    refused(("challenge", "convert", "sigmoid.h5", "out"), "sigmoid")
