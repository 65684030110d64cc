"""`sparsenn challenge generate`: what is asked for is what lies on the disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from command_line import Refused, Run

from sparsenn.datasets import digit_inputs, radixnet
from sparsenn.io import read_dataset, read_official

SMALL = ("--layers", 3, "--images", 30, "--inputs", "digits")


def test_hdf5_holds_network_inputs_truth_and_provenance(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "new.h5"
    done = run("challenge", "generate", path, *SMALL, "--seed", 7)
    made = read_dataset(path)
    network, inputs = radixnet(1024, 3, seed=7, bias=-0.3), digit_inputs(1024, 30, seed=7)
    assert len(made.network) == 3
    assert all(np.array_equal(a.weights.indices, b.weights.indices) for a, b in zip(made.network, network, strict=True))
    assert np.array_equal(made.inputs.indices, inputs.indices)
    assert {layer.bias for layer in made.network} == {-0.3}
    assert f"{made.truth.size} categories" in done.stdout
    assert "seed 7" in done.stdout
    run("infer", path)


def test_options_of_the_network(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "mixed.h5"
    options = ("--neurons", 144, "--radices", "3, 2,2", "--kronecker", 12, "--weight", 0.25, "--bias", -0.5)
    run("challenge", "generate", path, *SMALL, *options)
    network = read_dataset(path).network
    assert [layer.edges for layer in network] == [144 * 36, 144 * 24, 144 * 24]
    assert {(layer.bias, float(layer.weights.values[0])) for layer in network} == {(-0.5, 0.25)}


def test_official_folder(run: Run, tmp_path: Path) -> None:
    run("challenge", "generate", tmp_path / "challenge", *SMALL)
    names = sorted(str(path.relative_to(tmp_path / "challenge")) for path in (tmp_path / "challenge").rglob("*.tsv"))
    assert "neuron1024-l3-categories.tsv" in names
    assert "neuron1024/n1024-l3.tsv" in names
    assert len(read_official(tmp_path / "challenge").network) == 3
    run("infer", tmp_path / "challenge")


@pytest.mark.parametrize(
    ("target", "arguments", "message"),
    [
        ("new.csv", (), "DST new.csv: '.csv' does not name a known file type; use .h5, .hdf5"),
        ("none/new.h5", (), "the folder none does not exist"),
        ("new.h5", ("--radices", "2,two"), "--radices 2,two: take whole numbers, separated by commas, as in 2,2,4"),
        ("new.h5", ("--radices", "2,2"), "radices [2, 2]"),
        ("new.h5", ("--neurons", 256), "give one"),
        ("new.h5", ("--images", 0), "--images"),
        ("new.h5", ("--bias", "inf"), "--bias inf is not a finite number"),
        ("new.h5", ("--inputs", "letters"), "unknown kind of inputs 'letters'"),
        ("new.h5", ("--inputs", "mnist", "--mnist", "none"), "none does not hold MNIST"),
        ("new.h5", ("--layers", 10**12), "layers"),
    ],
)
def test_bad_input_is_refused_and_leaves_no_file(
    refused: Refused, target: str, arguments: tuple[object, ...], message: str
) -> None:
    refused(("challenge", "generate", target, *SMALL, *arguments), message)
