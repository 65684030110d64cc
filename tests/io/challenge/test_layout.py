from __future__ import annotations

from pathlib import Path

import pytest

from sparsenn.errors import FileFormatError, InputError, UsageError
from sparsenn.io.challenge.layout import CHALLENGE_BIAS, Layout, challenge_bias, find_layout, layer_number


def folder(place: Path, *names: str) -> Path:
    for name in names:
        if name.endswith("/"):
            (place / name).mkdir()
        else:
            (place / name).write_text("")
    return place


def test_only_network_is_found(tmp_path: Path) -> None:
    names = ["sparse-images-8.tsv", "neuron8/", "neuron8-l3-categories.tsv", "neuron8-l12-categories.tsv"]
    others = [
        "neuron16-l3-categories.tsv",
        "README",
        "sparse-images-x.tsv",
        "neuron8-l3-categories.tsv.bak",
        "neuron8.old/",
    ]
    found = find_layout(folder(tmp_path, *names, *others))
    truths = {depth: tmp_path / f"neuron8-l{depth}-categories.tsv" for depth in (3, 12)}
    assert found == Layout(8, tmp_path / "sparse-images-8.tsv", tmp_path / "neuron8", truths)
    assert found.shape == (8, 8)


def test_plain_is_taken_before_compressed(tmp_path: Path) -> None:
    folder(tmp_path, "sparse-images-8.tsv", "sparse-images-8.tsv.gz", "neuron8/", "neuron8.tar.gz")
    found = find_layout(tmp_path)
    assert (found.images.name, found.network.name) == ("sparse-images-8.tsv", "neuron8")


def test_one_of_several(tmp_path: Path) -> None:
    folder(tmp_path, "sparse-images-8.tsv", "neuron8/", "sparse-images-16.tsv.gz", "neuron16.tar.gz", "neuron32.tar.gz")
    assert find_layout(tmp_path, 16).network.name == "neuron16.tar.gz"
    with pytest.raises(UsageError, match=r"holds networks of 8, 16 neurons; say which one \(--neurons\)"):
        find_layout(tmp_path)
    with pytest.raises(UsageError, match="no network of 64 neurons here; there is 8, 16"):
        find_layout(tmp_path, 64)
    with pytest.raises(InputError, match=r"sparse-images-32\.tsv\[\.gz\]: missing"):
        find_layout(tmp_path, 32)


@pytest.mark.parametrize(
    ("there", "missing"),
    [("sparse-images-8.tsv", r"neuron8\[\.tar\.gz\]"), ("neuron8/", r"sparse-images-8\.tsv\[\.gz\]")],
)
def test_half_a_network(tmp_path: Path, there: str, missing: str) -> None:
    with pytest.raises(InputError, match=f"{missing}: missing; the network of 8 neurons is not complete"):
        find_layout(folder(tmp_path, there))


def test_something_else(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not the official layout"):
        find_layout(folder(tmp_path, "problem.h5"))
    with pytest.raises(InputError, match="no such file"):
        find_layout(tmp_path / "nowhere")
    with pytest.raises(InputError, match="no such file"):
        find_layout(tmp_path / "problem.h5")


def test_width_beyond_int32(tmp_path: Path) -> None:
    folder(tmp_path, "sparse-images-2147483648.tsv", "neuron2147483648/")
    with pytest.raises(UsageError, match="2,147,483,648 neurons are beyond 2,147,483,647"):
        find_layout(tmp_path)


def test_bias_of_the_challenge() -> None:
    assert [challenge_bias(neurons) for neurons in CHALLENGE_BIAS] == [-0.30, -0.35, -0.40, -0.45]
    with pytest.raises(UsageError, match="sets no bias for 8 neurons, only for 1,024, 4,096, 16,384, 65,536; give one"):
        challenge_bias(8)


def test_names_of_layers() -> None:
    layout = Layout(8, Path("i"), Path("neuron8"), {})
    assert layer_number(layout, "n8-l120.tsv") == 120
    assert layer_number(layout, "n8-l1.tsv.gz") == 1
    for name in ("n8-l0.tsv", "n8-l01.tsv", "n8.tsv", "._n8-l1.tsv", "n8-l1.tsv.bak", "n8-l1.csv"):
        assert layer_number(layout, name) is None
    with pytest.raises(FileFormatError, match=r"neuron8: holds n16-l1\.tsv, a layer of 16 neurons, among layers of 8"):
        layer_number(layout, "n16-l1.tsv")
