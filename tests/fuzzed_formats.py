"""Every format that the package reads: small valid files of it, and what is done with a file that may be damaged.

To have a new format fuzzed, add it to `FORMATS`.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pytest
import scipy.sparse as sp
from idx_files import write_idx as write_idx_file
from keras_files import conv2d, dense, flatten, layer, max_pool, write_archive, write_functional, write_legacy
from pyarrow import parquet
from rich.console import Console

import sparsenn
from sparsenn import CSR, Dataset, Linear, Model, Network, SparseLinear
from sparsenn.cli import main
from sparsenn.datasets import download
from sparsenn.errors import InputError, ResourceError
from sparsenn.formats import Column, Scaling, TableEncoding
from sparsenn.io.arrays import idx, matrix_market
from sparsenn.io.challenge import folder as challenge_folder
from sparsenn.io.challenge import tsv
from sparsenn.io.hdf5 import checkpoint, dataset, model
from sparsenn.io.importers.rounding import RoundingWarning
from sparsenn.io.tables import files
from sparsenn.io.tables.row_source import checked, faults_reported, opened_rows
from sparsenn.layers import AvgPool2d, Conv2d, Flatten, Identity, MaxPool2d, ReLU, Sigmoid, Softmax, Tanh
from sparsenn.report.caches import choices_table
from sparsenn.report.records import to_json
from sparsenn.runtime import choices
from sparsenn.training import TrainingData, read_data, read_rows, train

__all__ = ["FORMATS", "Format"]

WIDTH = 8
MOST_WORK = 1_000_000
"""Rows × widest layer up to which what was read is run through its network."""


@dataclass(frozen=True)
class Format:
    """One format.

    Parameters
    ----------
    write : writes valid files into an empty folder.
    read : given that folder, in which one file may have been damaged, and the name of that file in it: reads it.
    mutable : whether a file of this name is one to damage; all are unless said.
    """

    write: Callable[[Path], None]
    read: Callable[[Path, str], object]
    mutable: Callable[[str], bool] = lambda name: True

    def files(self) -> dict[str, bytes]:
        """Return the valid files by name, in order."""
        with TemporaryDirectory() as folder:
            self.write(Path(folder))
            paths = sorted(path for path in Path(folder).rglob("*") if path.is_file())
            return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


# ---- Datasets -----------------------------------------------------------------------------------------------------


def sparse(rows: int, columns: int, seed: int) -> Any:
    return sp.random_array((rows, columns), density=0.4, format="csc", dtype=np.float32, rng=seed)


def challenge_like() -> Dataset:
    network = Network.from_scipy([sparse(WIDTH, WIDTH, seed) for seed in (1, 2)], bias=-0.1, activation=ReLU(32.0))
    inputs = sp.csr_array(sparse(5, WIDTH, 3) != 0, dtype=np.float32)
    return Dataset("small", network, CSR.from_scipy(inputs), np.array([0, 4]))


def mixed() -> Dataset:
    layers = (
        SparseLinear.from_scipy(sparse(WIDTH, 6, 4), bias=np.arange(6.0), activation=Tanh()),
        SparseLinear.from_scipy(sp.csc_array(np.eye(6, 3) * 2.0), bias=None, activation=Sigmoid()),
    )
    return Dataset("mixed", Network(layers), CSR.from_scipy(sp.csr_array(sparse(5, WIDTH, 5))), None, {"seed": "5"})


def run(dataset: Dataset) -> None:
    if dataset.inputs.shape[0] * dataset.network.widest <= MOST_WORK:
        sparsenn.infer(dataset.network, dataset.inputs)


def write_official(**form: bool) -> Callable[[Path], None]:
    return lambda folder: challenge_folder.write_official(challenge_like(), folder, **form)


def read_official(folder: Path, name: str) -> None:
    run(sparsenn.load(folder, bias=-0.1))
    sparsenn.load(folder, bias=-0.1, layers=1, limit_inputs=2)


def write_datasets(folder: Path) -> None:
    dataset.write_dataset(challenge_like(), folder / "regular.h5")
    dataset.write_dataset(mixed(), folder / "mixed.h5")


def read_dataset(folder: Path, name: str) -> None:
    run(sparsenn.load(folder / name))
    sparsenn.load(folder / name, layers=1, limit_inputs=2)


def write_result(folder: Path) -> None:
    dataset.write_result(
        folder / "result.h5", challenge_like().inputs, np.array([1, 3]), {"by": "a test"}, np.arange(5)
    )


# ---- Matrices and arrays ------------------------------------------------------------------------------------------


def write_triples(folder: Path) -> None:
    tsv.write_layer(folder / "layer.tsv", CSR.from_scipy(sp.csr_array(sparse(WIDTH, 6, 6))))
    tsv.write_layer(folder / "layer.tsv.gz", CSR.from_scipy(sp.csr_array(sparse(WIDTH, 6, 7))))


def write_categories(folder: Path) -> None:
    tsv.write_categories(folder / "categories.tsv", np.array([0, 3, 4, 77]))


def write_matrix_market(folder: Path) -> None:
    matrix_market.write_matrix_market(folder / "real.mtx", CSR.from_scipy(sp.csr_array(sparse(WIDTH, 6, 8))))
    matrix_market.write_matrix_market(folder / "real.mtx.gz", CSR.from_scipy(sp.csr_array(sparse(WIDTH, 6, 9))))
    for field, symmetry, entries in (
        ("pattern", "symmetric", "1 1\n2 1\n3 2\n4 4\n"),
        ("integer", "skew-symmetric", "2 1 5\n3 2 -7\n4 1 9\n4 2 1\n"),
    ):
        text = f"%%MatrixMarket matrix coordinate {field} {symmetry}\n% a comment\n\n4 4 4\n{entries}"
        (folder / f"{symmetry}.mtx").write_text(text)
    (folder / "array.mtx").write_text("%%MatrixMarket matrix array real general\n% a comment\n2 2\n1\n-2.5\n1e-3\n0\n")


def read_matrix_market(folder: Path, name: str) -> None:
    matrix_market.read_matrix_market_rows(folder / name)


def write_idx(folder: Path) -> None:
    rng = np.random.default_rng(1)
    for suffix in ("", ".gz"):
        name = "packed" if suffix else "plain"
        write_idx_file(folder / f"{name}-images-idx3-ubyte{suffix}", rng.integers(0, 255, (4, 3, 3), np.uint8))
        write_idx_file(folder / f"{name}-labels-idx1-ubyte{suffix}", rng.integers(0, 3, 4, np.uint8))
    write_idx_file(folder / "floats.idx", rng.standard_normal((3, 2), np.float32))
    write_idx_file(folder / "doubles.idx", rng.standard_normal((3, 2)))


def read_idx(folder: Path, name: str) -> None:
    idx.read_idx(folder / name)
    if name.endswith(".idx"):
        read_rows(folder / name, 2, 2)
    else:
        read_data(folder / name.replace("labels", "images").replace("idx1", "idx3"))


def write_numpy(folder: Path) -> None:
    rows = np.random.default_rng(2).standard_normal((4, 3), np.float32)
    np.save(folder / "rows.npy", rows)
    np.save(folder / "columns.npy", np.asfortranarray(rows.astype(">f8")))
    np.savez(folder / "labelled.npz", inputs=rows, labels=np.arange(4) % 2)
    np.savez_compressed(folder / "packed.npz", inputs=rows, targets=rows[:, :2])
    for kind in ("csr", "csc", "coo"):
        sp.save_npz(folder / f"{kind}.npz", sparse(4, 3, 10).asformat(kind), compressed=kind == "coo")


def read_table(folder: Path, name: str) -> None:
    labelled = "labelled" in name
    read_rows(
        folder / name, 3, 2, classes=labelled, targets=1 if labelled and name.endswith((".csv", ".tsv")) else None
    )


# ---- Training -----------------------------------------------------------------------------------------------------


def write_csv(folder: Path) -> None:
    rows = [",".join(f"{value:.4g}" for value in row) for row in np.random.default_rng(3).standard_normal((6, 3))]
    text = "a,b,c,class\n" + "".join(f"{row},{number % 2}\n" for number, row in enumerate(rows))
    (folder / "labelled.csv").write_text(text)
    (folder / "plain.csv").write_bytes("\r\n".join(rows).encode())
    (folder / "plain.tsv").write_text("\n".join(rows).replace(",", "\t"))


def read_csv(folder: Path, name: str) -> None:
    files.read_table(folder / name).matrix()
    read_table(folder, name)


def write_tables(folder: Path) -> None:
    text = 'age,town,kind\n30,Ulm,b\n,"Bonn, am Rhein",a\n50,NA,b\n'
    (folder / "mixed.csv").write_text(text)
    (folder / "nameless.tsv").write_text("1\tx\t2\n3\ty\t4\n")
    columns = {"age": [1.5, None], "town": pa.array(["a", "b"]).dictionary_encode(), "kind": [True, False]}
    parquet.write_table(pa.table(columns), folder / "some.parquet")
    parquet.write_table(pa.table(columns), folder / "plain.parquet", use_dictionary=False, compression="none")


def read_tables(folder: Path, name: str) -> None:
    data = read_data(folder / name, impute=True)
    known = {"classes": data.classes, "class_names": data.class_names, "encoding": data.encoding, "targets": 1}
    read_rows(folder / name, data.inputs.shape[1], data.targets.shape[1], **known)


def write_streamed_rows(folder: Path) -> None:
    rows = np.random.default_rng(4).standard_normal((5, WIDTH), np.float32)
    np.save(folder / "rows.npy", rows)
    with h5py.File(folder / "rows.h5", "w") as file:
        file["inputs"] = rows
    parquet.write_table(pa.table({f"c{number}": column for number, column in enumerate(rows.T)}), folder / "c.parquet")
    dataset.write_dataset(mixed(), folder / "sparse.h5")
    for name in ("images.tsv", "images.tsv.gz"):
        tsv.write_layer(folder / name, CSR.from_scipy(sp.csr_array(sparse(5, WIDTH, 11))))


def read_streamed_rows(folder: Path, name: str) -> None:
    with opened_rows(folder / name, WIDTH) as source:
        for rows in source.pieces(2):
            with faults_reported(folder / name, 0):
                checked(rows)


def write_training_data(folder: Path) -> None:
    rows = np.random.default_rng(5).standard_normal((4, 3), np.float32)
    for name, others in (("labels", np.arange(4) % 2), ("targets", rows[:, :2])):
        with h5py.File(folder / f"{name}.h5", "w") as file:
            file["inputs"], file[name] = rows, others


def write_models(folder: Path) -> None:
    rng = np.random.default_rng(6)
    dense = Linear(rng.standard_normal((WIDTH, 4)), rng.standard_normal(4), ReLU())
    last = Linear(rng.standard_normal((3, 2)), None, Identity())
    middle = SparseLinear.from_scipy(sp.csc_array(np.eye(4, 3)), bias=None, activation=Sigmoid())
    model.write_model(folder / "rows.h5", Model(Network((dense, middle, last)), "cross_entropy", True, {"by": "hand"}))
    images = (
        Conv2d(rng.standard_normal((2, 1, 3, 3)), None, ReLU(), padding=1),
        MaxPool2d(2),
        Conv2d(rng.standard_normal((2, 1, 2, 2)), None, Tanh(), groups=2),
        AvgPool2d(2),
        Flatten(),
        Linear(rng.standard_normal((2, 3))),
        Softmax(),
    )
    columns = TableEncoding((Column("a", None, 0.5), Column("b", tuple("stuvwxy"), "s")), ("kind",), True)
    known = Model(Network((dense,)), "cross_entropy", True, {}, None, ("k", "l", "m", "n"), columns)
    model.write_model(folder / "table.h5", replace(known, scaling=Scaling(np.ones(1), np.arange(8.0), np.ones(8))))
    network = Network(images, image=(1, 6, 6))
    model.write_model(folder / "images.h5", Model(network, "cross_entropy", True, {}, resize="bilinear"))


def read_model(folder: Path, name: str) -> None:
    model.is_model(folder / name)
    run_model(model.read_model(folder / name).network)


def run_model(network: Network) -> None:
    if network.widest <= MOST_WORK // 2:
        sparsenn.infer(network, np.ones((2, network.inputs), np.float32))


def write_onnx(folder: Path) -> None:
    """Write what this package writes, and what others wrote, with weights of many kinds."""
    write_models(folder)
    for name in ("rows", "images"):
        network = model.read_model(folder / f"{name}.h5").network
        sparsenn.to_onnx(network, folder / f"{name}.onnx", sparse=name == "rows")
    (folder / "rows.onnx.gz").write_bytes(gzip.compress((folder / "rows.onnx").read_bytes(), mtime=0))
    for path in folder.glob("*.h5"):
        path.unlink()
    exported = Path(__file__).parent / "io" / "importers" / "onnx" / "exported"
    for name in ("mlp-scaled-masked.script", "plain-conv.dynamo", "conv-batchnorm-first.script", "sklearn-two"):
        shutil.copy(exported / f"{name}.onnx", folder)


def read_onnx(folder: Path, name: str) -> None:
    run_imported(sparsenn.from_onnx, folder / name)


def run_imported(read: Callable[..., Network], *arguments: Any) -> None:
    """Read a model and run it; damaged weights may need more than float32, of which a warning says so."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RoundingWarning)
        network = read(*arguments)
    run_model(network)


def write_keras(folder: Path) -> None:
    rng = np.random.default_rng(7)
    images = [
        conv2d(rng.standard_normal((3, 3, 1, 2)), np.zeros(2), activation="relu"),
        max_pool(2),
        flatten(),
        dense(rng.standard_normal((8, 3)), np.ones(3), "softmax"),
    ]
    rows = [dense(rng.standard_normal((4, 4)), np.ones(4), "tanh") for _ in range(2)]
    write_archive(folder / "images.keras", (6, 6, 1), images)
    write_functional(folder / "sum.keras", (4,), [*rows, layer("Add")], [["input"], ["l1"], ["l1", "l2"]])
    write_legacy(folder / "rows.h5", (4,), rows)


def read_keras(folder: Path, name: str) -> None:
    run_imported(sparsenn.from_keras, folder / name)


def write_weights(folder: Path) -> None:
    rng = np.random.default_rng(8)
    shapes = {"fc1.weight": (6, 4), "fc1.bias": (6,), "fc2.weight": (2, 6), "fc2.bias": (2,)}
    arrays = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    np.savez(folder / "rows.npz", **arrays)
    (folder / "rows.safetensors").write_bytes(safetensors(arrays))
    shapes = {"conv.weight": (2, 1, 3, 3), "norm.weight": (2,), "norm.bias": (2,), "fc.weight": (3, 8)}
    arrays = {name: rng.standard_normal(shape).astype(np.float16) for name, shape in shapes.items()}
    arrays |= {"norm.running_mean": np.zeros(2, np.float32), "norm.running_var": np.ones(2)}
    (folder / "images.safetensors").write_bytes(safetensors(arrays))


def safetensors(arrays: Mapping[str, Any]) -> bytes:
    header, end = {}, 0
    for name, array in arrays.items():
        kind = f"F{8 * array.itemsize}"
        header[name] = {"dtype": kind, "shape": array.shape, "data_offsets": [end, end + array.nbytes]}
        end += array.nbytes
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + b"".join(array.tobytes() for array in arrays.values())


def read_weights(folder: Path, name: str) -> None:
    steps = "1x6x6,conv,norm,relu,max_pool2,flatten,fc" if name.startswith("images") else None
    run_imported(sparsenn.from_weights, folder / name, steps)


DATA = TrainingData(np.eye(4, 3), np.eye(4, 2))


def write_checkpoint(folder: Path) -> None:
    train(DATA, validation=DATA, hidden=(3,), epochs=2, batch_size=2, checkpoint=folder / "state.h5")


def read_checkpoint(folder: Path, name: str) -> None:
    checkpoint.read_checkpoint(folder / name)
    copy = Path(shutil.copy(folder / name, folder / "resumed.h5"))
    train(DATA, validation=DATA, hidden=(3,), epochs=3, batch_size=2, checkpoint=copy, resume=True)


# ---- Records ------------------------------------------------------------------------------------------------------


CHOSEN = {"device": "H200", "network": "ab", "rows": 64, "form": "csr"}


@contextmanager
def cache_in(folder: Path) -> Iterator[None]:
    """The cache folder is another; warnings of choices that cannot be used are not shown."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.setenv("SPARSENN_CACHE", str(folder))
        warnings.simplefilter("ignore", choices.ChoicesWarning)
        yield


def write_choices(folder: Path) -> None:
    steps = [{"first": 1, "last": 3, "kernel": "chunks", "seconds": 1e-4, "candidates": {"chunks": [1e-4, 3]}}]
    with cache_in(folder):
        choices.write(CHOSEN, {"choices": steps, "measured": "2026-11-28"})


def read_choices(folder: Path, name: str) -> None:
    """Read them as plans do, and as the verb does, which shows them."""
    with cache_in(folder):
        choices.read(CHOSEN)
        entries = choices.entries()
    Console(file=StringIO()).print(choices_table(entries))
    to_json({"choices": entries})


def write_downloads(folder: Path) -> None:
    entry = {"url": "http://127.0.0.1:1/a", "bytes": 4, "sha256": "0" * 64, "validator": None, "fetched": "2026-01-01"}
    (folder / "downloads.json").write_text(json.dumps({"neuron1024-l120-categories.tsv": entry}, indent=2))
    (folder / "neuron1024-l120-categories.tsv").write_text("1\n2\n")


def read_downloads(folder: Path, name: str) -> None:
    """Ask for files that nobody serves: the record is read, and the file that it lists checked, before."""
    try:
        download("radixnet-1024x120", folder, base_url="http://127.0.0.1:1", attempts=1, pause=0)
    except ResourceError as error:
        if "refused" not in str(error):
            raise


# ---- The command line ----------------------------------------------------------------------------------------------


COMMANDS = (
    "predict table.h5 people.csv --ignore kind --id name --impute --scores --output found.csv",
    "predict images.h5 pixels.npy --no-classes --factor 0.5 --mean 0.1 -o found.npy --stats --json f.json",
    "predict rows.h5 targets.csv --targets 2 --device cpu --precision float64",
    "predict images.h5 pixels.npy --stream --resume --memory-limit 2M --output found.npy",
    "convert rows.h5 found.onnx.gz --no-progress",
    "convert rows.safetensors found.h5 --steps fc1,relu,fc2",
    "convert mlp-scaled-masked.script.onnx found.h5 --shape 6",
    "info images.h5 --plan --rows 64 --prune 0.5 --device cpu --json -",
    "infer mixed.h5 --layers 2 --bias -0.1 --limit-inputs 3 --batch-size 2 --output found.tsv --stats",
    "challenge run mixed.h5 --stream --inputs pixels8.npy --memory-limit 1M -o found.h5 --json found.json",
    "train people.csv --targets kind --ignore name --impute --hidden 3 --epochs 2 --validation people.csv -o found.h5",
    "train rows.csv --checkpoint state.h5 --momentum 0.5 --epochs 1 --scale none --output found.h5",
    "challenge generate found.h5 --neurons 64 --layers 3 --radices 2,2 --kronecker 16 --images 4 --bias -0.3",
    "challenge convert mixed.h5 found.h5 --layers 1",
    "challenge convert layer.tsv found.mtx --shape 8x6",
    "challenge verify result.h5 regular.h5",
)
"""Command lines, over files of other formats."""

MANY = re.compile(r"\d{4,}")
"""Numbers that may ask for much work."""


def write_commands(folder: Path) -> None:
    for write in (write_onnx, write_models, write_weights, write_datasets, write_result, write_triples):
        write(folder)
    (folder / "people.csv").write_text("name,a,b,kind\nA,0.5,s,k\nB,1,t,l\nC,,y,k\n")
    (folder / "rows.csv").write_text("1,2,3\n4,5,6\n7,8,9.5\n")
    rng = np.random.default_rng(9)
    np.save(folder / "pixels.npy", rng.standard_normal((5, 36), np.float32))
    np.save(folder / "pixels8.npy", rng.standard_normal((5, WIDTH), np.float32))
    np.savetxt(folder / "targets.csv", np.eye(2, WIDTH + 2, WIDTH), delimiter=",")
    for number, command in enumerate(COMMANDS):
        (folder / f"{number}.arguments").write_text(command.replace(" ", "\n"))


def run_command(folder: Path, name: str) -> None:
    """Run the program in a folder of its own; what is not done must be one line, or the usage, and leave no file."""
    arguments = (folder / name).read_bytes().decode(errors="surrogateescape").replace("\0", "").split("\n")
    if "info" not in arguments and any(map(MANY.fullmatch, arguments)):
        return
    out, err = StringIO(), StringIO()
    with TemporaryDirectory(dir=folder) as work, cache_in(folder / "cache"):
        before = {path.name for path in folder.iterdir() if path.is_file()}
        for file in before:
            os.link(folder / file, Path(work, file))
        with chdir(work), pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
            warnings.simplefilter("default")
            patch.setattr(sys, "argv", ["sparsenn", *arguments])
            code = main()
        made = {str(path.relative_to(work)) for path in Path(work).rglob("*")} - before
    said = err.getvalue()
    assert code in (0, 1, 2), f"exit code {code}: {said}"
    assert "Traceback" not in said, said
    assert not any(file.endswith(".part") for file in made), made
    if code == 2:
        assert said.count("error: ") == 1 or said.startswith("Usage: "), said
        assert not made - {"found.npy.pieces"}, (made, said)
        raise InputError(said.strip().rpartition("\n")[2])


FORMATS: Mapping[str, Format] = {
    "official": Format(write_official(), read_official),
    "official_gzip": Format(write_official(compress=True), read_official),
    "official_archive": Format(write_official(archive=True), read_official, lambda name: name.endswith(".tar.gz")),
    "dataset": Format(write_datasets, read_dataset),
    "result": Format(write_result, lambda folder, name: dataset.read_categories(folder / name)),
    "triples": Format(write_triples, lambda folder, name: tsv.read_triples(folder / name, (WIDTH, 6))),
    "categories": Format(write_categories, lambda folder, name: tsv.read_categories(folder / name)),
    "matrix_market": Format(write_matrix_market, read_matrix_market),
    "idx": Format(write_idx, read_idx),
    "numpy": Format(write_numpy, read_table),
    "csv": Format(write_csv, read_csv),
    "tables": Format(write_tables, read_tables),
    "streamed_rows": Format(write_streamed_rows, read_streamed_rows),
    "training_data": Format(write_training_data, lambda folder, name: read_data(folder / name)),
    "model": Format(write_models, read_model),
    "checkpoint": Format(write_checkpoint, read_checkpoint),
    **({"onnx": Format(write_onnx, read_onnx)} if find_spec("onnx") else {}),
    "keras": Format(write_keras, read_keras),
    "weights": Format(write_weights, read_weights),
    "choices": Format(write_choices, read_choices),
    "downloads": Format(write_downloads, read_downloads, lambda name: name.endswith(".json")),
    "commands": Format(write_commands, run_command, lambda name: name.endswith(".arguments")),
}
