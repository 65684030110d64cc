from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest

from sparsenn.datasets import generate, load
from sparsenn.errors import FileFormatError, InputError, UsageError
from sparsenn.io.dataset import Dataset
from sparsenn.io.hdf5.dataset import write_dataset
from sparsenn.runtime.progress import Progress, silent

# The function of the same name hides the module as an attribute of the package.
module = importlib.import_module("sparsenn.datasets.load")


@pytest.fixture(scope="module")
def made() -> Dataset:
    dataset = generate(256, 6, images=100, bias=-0.2)
    assert 0 < dataset.truth.size < 100
    return dataset


@pytest.fixture
def file(made: Dataset, tmp_path: Path) -> Path:
    write_dataset(made, tmp_path / "problem.h5")
    return tmp_path / "problem.h5"


@pytest.fixture
def names_asked_for(file: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Have every name stand for `file`."""
    asked: list[str] = []

    def named_file(name: str, progress: Progress = silent, truth: bool = True) -> Path:
        asked.append(name)
        return file

    monkeypatch.setattr(module, "named_file", named_file)
    return asked


def official_folder_of(folder: Path, neurons: int) -> Path:
    """A one-layer network in the official layout, every neuron joined with itself, two images, the first its truth."""
    (folder / f"neuron{neurons}").mkdir(parents=True)
    lines = "".join(f"{neuron}\t{neuron}\t1\n" for neuron in range(1, neurons + 1))
    (folder / f"neuron{neurons}" / f"n{neurons}-l1.tsv").write_text(lines)
    (folder / f"sparse-images-{neurons}.tsv").write_text("1\t1\t1\n2\t2\t1\n")
    (folder / f"neuron{neurons}-l1-categories.tsv").write_text("1\n2\n")
    return folder


@pytest.mark.parametrize("as_text", [True, False])
def test_a_file(file: Path, made: Dataset, as_text: bool) -> None:
    dataset = load(str(file) if as_text else file)
    np.testing.assert_array_equal(dataset.truth, made.truth)
    assert dataset.provenance == made.provenance
    assert len(dataset.network) == 6


def test_a_prefix_of_the_layers_has_no_truth_and_says_so(file: Path, made: Dataset) -> None:
    dataset = load(file, layers=3)
    assert len(dataset.network) == 3
    assert dataset.truth is None
    assert dataset.provenance["part"] == "the first 3 layers"
    assert dataset.provenance["truth"] == "not known for the first 3 layers"
    whole = load(file, layers=6)
    assert whole.truth is not None
    assert whole.provenance["truth"] == made.provenance["truth"]


def test_a_limit_slices_inputs_and_truth(file: Path, made: Dataset) -> None:
    dataset = load(file, limit_inputs=50)
    assert dataset.inputs.shape == (50, 256)
    np.testing.assert_array_equal(dataset.truth, made.truth[made.truth < 50])
    assert dataset.provenance["part"] == "the first 50 inputs"
    assert load(file, layers=2, limit_inputs=9).provenance["part"] == "the first 2 layers, the first 9 inputs"


def test_another_bias_drops_the_truth_and_says_so(file: Path) -> None:
    dataset = load(file, bias=-0.25)
    assert {layer.bias for layer in dataset.network} == {-0.25}
    assert dataset.truth is None
    assert dataset.provenance["truth"] == "not known: the bias is another one"
    assert dataset.provenance["bias"].startswith("-0.25")


def test_neurons_must_be_the_files_own_and_layers_be_there(file: Path) -> None:
    assert load(file, neurons=256).network.inputs == 256
    with pytest.raises(UsageError, match="has 256 neurons, not 1024"):
        load(file, neurons=1024)
    with pytest.raises(UsageError, match="7 layers"):
        load(file, layers=7)


@pytest.mark.parametrize("limits", [{"layers": 0}, {"limit_inputs": 0}, {"layers": -3}])
def test_limits_must_be_positive(file: Path, limits: dict[str, int]) -> None:
    for source in (file, "radixnet-1024x120", file.parent):
        with pytest.raises(UsageError, match="at least 1"):
            load(source, **limits)  # type: ignore[arg-type]


def test_a_name(names_asked_for: list[str]) -> None:
    assert load("radixnet-4096x120").truth is not None
    assert load("radixnet-4096x120", layers=4).truth is None
    assert names_asked_for == ["radixnet-4096x120"] * 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"neurons": 4096}, "radixnet-1024x120 has 1024 neurons, not 4096"),
        ({"neurons": 0}, "not 0"),
        ({"layers": 480}, "radixnet-1024x120 has 120 layers, not 480"),
        ({"layers": 121}, "has 120 layers, not 121"),
    ],
)
def test_options_that_do_not_fit_a_name(names_asked_for: list[str], options: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load("radixnet-1024x120", **options)  # type: ignore[arg-type]
    assert names_asked_for == []


def test_a_name_comes_before_a_folder_of_that_name(
    names_asked_for: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    official_folder_of(tmp_path / "radixnet-1024x120", 4)
    monkeypatch.chdir(tmp_path)
    assert load("radixnet-1024x120").network.inputs == 256
    assert load("./radixnet-1024x120", bias=-0.5).network.inputs == 4
    assert load(Path("radixnet-1024x120"), bias=-0.5).network.inputs == 4


def test_a_folder_keeps_its_truth_under_the_bias_that_goes_with_it(tmp_path: Path) -> None:
    challenge = official_folder_of(tmp_path / "a", 1024)
    kept = load(challenge, bias=-0.3, limit_inputs=1)
    assert kept.truth.tolist() == [0]
    assert kept.provenance["part"] == "the first 1 inputs"
    assert load(challenge, bias=-0.31).truth is None
    own = load(official_folder_of(tmp_path / "b", 4), bias=-0.5)
    assert own.truth is not None
    assert own.network[0].bias == -0.5


def test_unknown_names_are_refused_with_the_choices() -> None:
    with pytest.raises(UsageError, match=r"'radixnet-1024x12'; did you mean 'radixnet-1024x120'\? \(known: radixnet"):
        load("radixnet-1024x12")


@pytest.mark.parametrize("source", ["missing.h5", "missing/folder", "missing/", Path("missing")])
def test_paths_that_do_not_exist(source: str | Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"missing.*: no such file or folder"):
        load(source)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("1\t1\t1\n")
    with pytest.raises(UsageError, match=r"a\.tsv is neither a folder .* nor an HDF5 file"):
        load(tmp_path / "a.tsv")
    (tmp_path / "a.h5").write_text("1\t1\t1\n")
    with pytest.raises(FileFormatError, match=r"a\.h5"):
        load(tmp_path / "a.h5")


def test_the_official_folder(official_folder: Path) -> None:
    dataset = load(official_folder, layers=120)
    assert dataset.truth.size == 19
    assert dataset.inputs.shape == (1200, 1024)
    assert load(official_folder, layers=2, limit_inputs=10).truth is None
