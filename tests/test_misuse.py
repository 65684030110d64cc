"""What is of a wrong type or beyond all bounds ends in one line of a `SparseNNError`, whatever NumPy is told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from children import python

import sparsenn
from sparsenn import COO, CSC, CSR, Conv2d, Linear, Network, ReLU, Session, SparseLinear, TrainingData
from sparsenn.errors import SparseNNError, UsageError
from sparsenn.formats import from_dense
from sparsenn.layers import AvgPool2d, MaxPool2d

EYE = sp.eye(3, format="csc")
SPARSE = Network((SparseLinear.from_scipy(EYE),))
DENSE = Network((Linear(np.eye(3)),))
MODEL = sparsenn.Model(DENSE, "mse", False)
ROW, IMAGE = np.ones((1, 3)), np.ones((1, 25))
DATA = TrainingData(np.ones((2, 2)), np.ones((2, 1)))
MATRIX = CSR.from_scipy(sp.eye(3, format="csr"))
HUGE = 10**30


def refuse(call: Callable[[], Any]) -> str:
    with pytest.raises(SparseNNError) as caught:
        call()
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    return message


def accepted(calls: Mapping[str, Callable[[], Any]]) -> list[str]:
    """Return the names of the calls that are not refused in one line, each with what happened instead."""
    found = []
    for name, call in calls.items():
        try:
            refuse(call)
        except (Exception, pytest.fail.Exception) as error:
            found.append(f"{name}: {error!r}")
    return found


# ---- Numbers --------------------------------------------------------------------------------------------------------

MASKED = np.ma.masked_array(ROW, [[True, False, False]])
NO_NUMBERS: dict[str, Any] = {
    "complex": ROW * 1j,
    "texts": ROW.astype(str),
    "texts as objects": ROW.astype(str).astype(object),
    "a list of texts": [["1", "2", "3"]],
    "masked": MASKED,
    "a list of masked rows": [MASKED[0]],
    "times": np.ones((1, 3), "m8[s]"),
    "dates": np.ones((1, 3), "M8[s]"),
    "nothing": [[None] * 3],
    "records": np.zeros((1, 3), [("value", "f4")]),
    "beyond float32": ROW * 1e300,
    "beyond float64": [[10**400, 1, 1]],
    "ragged": [[1.0, 2.0, 3.0], [1.0]],
    "None": None,
    "a dict": {},
    "bytes": b"abc",
}
TAKERS: dict[str, Callable[[Any], Any]] = {
    "Linear": Linear,
    "TrainingData": lambda values: TrainingData(values, ROW),
    "targets": lambda values: TrainingData(ROW, values),
    "from_dense": lambda values: from_dense(values).validate(),
    "evaluate": lambda values: sparsenn.evaluate(DENSE, values, ROW, "mse", device="cpu"),
}


@pytest.mark.parametrize("taker", TAKERS)
def test_what_are_no_numbers(taker: str) -> None:
    assert accepted({kind: partial(TAKERS[taker], values) for kind, values in NO_NUMBERS.items()}) == []


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_what_are_no_inputs(device: str) -> None:
    for network in (SPARSE, DENSE):
        session = Session(network, device=device)
        for call in (session, session.run):
            assert accepted({kind: partial(call, values) for kind, values in NO_NUMBERS.items()}) == []


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_sparse_inputs_beyond_float32(device: str) -> None:
    session = Session(SPARSE, device=device)
    for rows in (sp.csr_array(ROW * 1e300), from_dense(ROW * 1e300, np.float64)):
        assert "float32" in refuse(lambda rows=rows: session(rows))
    assert np.array_equal(Session(SPARSE, device="reference")(ROW * 1e300), ROW * 1e300)


def test_a_masked_array_without_a_mask_is_an_array() -> None:
    assert np.array_equal(Session(DENSE, device="cpu")(np.ma.masked_array(ROW)), ROW)
    assert TrainingData(np.ma.masked_array(ROW), ROW).rows == 1


# ---- Everything else ------------------------------------------------------------------------------------------------

MISUSES: dict[str, Callable[[], Any]] = {
    "bias": lambda: Linear(np.eye(2), "0.5"),
    "bias as objects": lambda: Linear(np.eye(2), np.array(["1", "2"], object)),
    "sparse bias": lambda: SparseLinear.from_scipy(EYE, 1j),
    "sparse weights beyond float32": lambda: SparseLinear(CSC.from_scipy(EYE * 1e300, np.float64)),
    "with_bias": lambda: SPARSE.with_bias("a"),  # type: ignore[arg-type]
    "values": lambda: CSR.from_arrays((1, 3), [0, 1], [1], ["1"]),
    "masked values": lambda: CSR.from_arrays((1, 3), [0, 1], [1], np.ma.masked_array([1.0], [True])),
    "offsets of texts": lambda: CSR.from_arrays((1, 3), ["0", "1"], [1], [1.0]),
    "offsets between": lambda: CSR.from_arrays((1, 3), [0, 1.7], [1], [1.0]),
    "offsets that are complex": lambda: CSR.from_arrays((1, 3), [0, 1j], [1], [1.0]),
    "no arrays": lambda: CSR.from_arrays((1, 3), None, None, None),
    "ragged rows": lambda: COO.from_arrays((1, 3), [[0], [1, 2]], [1], [1.0]),
    "groups beyond": lambda: MATRIX.slice_groups(0, 99),
    "groups reversed": lambda: MATRIX.slice_groups(2, 1),
    "stride": lambda: Conv2d(np.ones((1, 1, 2, 2)), stride=HUGE),
    "dilation": lambda: Conv2d(np.ones((1, 1, 1, 1)), dilation=HUGE),
    "padding": lambda: Network((Conv2d(np.ones((1, 1, 2, 2)), padding=10**9),), image=(1, 5, 5)),
    "window": lambda: MaxPool2d(HUGE),
    "image": lambda: Network((MaxPool2d(1),), image=(HUGE, 5, 5)),
    "pixels": lambda: Network((AvgPool2d(1),), image=(10**6, 10**3, 10**3)),
    "rows that grow": lambda: Network((Conv2d(np.ones((9, 1, 1, 1))),), image=(1, 30_000, 30_000)),
    "no network": lambda: sparsenn.evaluate(None, ROW, ROW, "mse"),
    "no loss": lambda: sparsenn.evaluate(DENSE, ROW, ROW, None),
    "targets that are complex": lambda: sparsenn.evaluate(DENSE, ROW, ROW * 1j, "mse"),
    "targets of texts": lambda: sparsenn.evaluate(DENSE, ROW, [["1"] * 3], "mse"),
    "machine": lambda: sparsenn.plan(SPARSE, ROW, machine=5),
    "compaction": lambda: Session(SPARSE, compaction="no"),
    "merging": lambda: Session(SPARSE, merging="off"),
    "deduplication": lambda: Session(SPARSE, deduplication=None),
    "progress": lambda: sparsenn.infer(SPARSE, ROW, progress="bar"),
    "form": lambda: Session(SPARSE)(ROW, form=["dense"]),
    "memory in words": lambda: Session(SPARSE, memory_limit="much"),
    "memory below 0": lambda: Session(SPARSE, memory_limit="-1G"),
    "too little memory": lambda: Session(SPARSE, weight_memory="0.0001k"),
    "operation": lambda: sparsenn.kernels(5),
    "data of SciPy": lambda: TrainingData(EYE, ROW),
    "image of data": lambda: TrainingData(ROW, ROW, image="abc"),
    "labels": lambda: TrainingData.of_labels(np.ones((2, 1)), ["a", "b"]),
    "labels as texts": lambda: TrainingData.of_labels(np.ones((2, 1)), ["1", "0"]),
    "labels that are complex": lambda: TrainingData.of_labels(np.ones((2, 1)), [1j, 0]),
    "labels that are masked": lambda: TrainingData.of_labels(np.ones((2, 1)), np.ma.masked_array([1, 0], [1, 0])),
    "labels of nothing": lambda: TrainingData.of_labels(None, [0, 1]),
    "classes": lambda: TrainingData.of_labels(np.ones((2, 1)), [0, 1], classes=2.5),
    "classes as text": lambda: TrainingData.of_labels(np.ones((2, 1)), [0, 1], classes="2"),
    "head": lambda: DATA.head(1.5),
    "load None": lambda: sparsenn.load(None),
    "load bytes": lambda: sparsenn.load(b"x"),
    "load a list": lambda: sparsenn.load(["a"]),
    "layers": lambda: sparsenn.load("radixnet-1024x120", layers=1.5),
    "limit_inputs": lambda: sparsenn.load("radixnet-1024x120", limit_inputs="3"),
    "bias of a dataset": lambda: sparsenn.load("radixnet-1024x120", bias="x"),
    "read_model None": lambda: sparsenn.read_model(None),
    "a NUL": lambda: sparsenn.read_model("a\0.h5"),
    "a descriptor of many digits": lambda: sparsenn.write_model("/dev/fd/" + 5000 * "1", MODEL),
    "a NUL in data": lambda: sparsenn.read_data("a\0.csv"),
    "neurons": lambda: sparsenn.radixnet("1024", 1),
    "layers between": lambda: sparsenn.radixnet(1024, 1.5),
    "radices": lambda: sparsenn.radixnet(1024, 1, radices=5),
    "radices of texts": lambda: sparsenn.radixnet(1024, 1, radices="ab"),
    "radices between": lambda: sparsenn.radixnet(64, 1, radices=[2.0, 2.0]),
    "kronecker": lambda: sparsenn.radixnet(1024, 1, kronecker=1.5),
    "seed": lambda: sparsenn.radixnet(1024, 1, seed=1.5),
    "weight": lambda: sparsenn.radixnet(1024, 1, weight="a"),
    "weight beyond float32": lambda: sparsenn.radixnet(1024, 1, weight=1e300),
}
OPTIONS_OF_TRAINING: list[tuple[str, Any]] = [
    *(("hidden", value) for value in (5, (2.7,), "12", None, ("3",), (True,))),
    *((name, value) for name in ("epochs", "batch_size", "seed", "validate_every") for value in (1.5, "3", None, True)),
    *((name, value) for name in ("learning_rate", "momentum") for value in ("0.1", None, 1j, np.nan, [0.1])),
    *((name, value) for name in ("device", "kernel", "precision") for value in (None, 5, [])),
    *(("activation", 5), ("output_activation", ReLU), ("loss", 5), ("loss", ["mse"]), ("validation", 5)),
    *(("checkpoint", 5), ("checkpoint", "a\0b"), ("checkpoint_every", "x"), ("report", 5), ("progress", "bar")),
]


def test_misuses() -> None:
    assert accepted(MISUSES) == []
    assert len(accepted({"no misuse": lambda: Linear(np.eye(2)), "a bug": lambda: [][0]})) == 2


def test_options_of_training() -> None:
    usual = {"epochs": 1, "device": "cpu", "hidden": (2,)}
    calls = {
        f"{name}={value!r}": partial(sparsenn.train, DATA, **{**usual, name: value})
        for name, value in OPTIONS_OF_TRAINING
    }
    assert accepted(calls) == []


def test_memory_may_be_given_with_a_unit() -> None:
    sizes = {"1G": 10**9, "1.5 GB": 1_500_000_000, "512 MiB": 1 << 29, "64k": 64_000, "2Ti": 1 << 41, " 3M ": 3_000_000}
    for text, count in sizes.items():
        options = Session(SPARSE, device="cpu", memory_limit=text, weight_memory=text).options
        assert (options.memory_limit, options.weight_memory) == (count, count)


INFER = ("infer", "radixnet-1024x120", "--layers", "1", "--limit-inputs", "1")


@pytest.mark.parametrize("threads", ["0", "-1", "1.5", "many", ""])
def test_a_number_of_threads_that_is_none(threads: str) -> None:
    done = python("-m", "sparsenn", *INFER, NUMBA_NUM_THREADS=threads)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: NUMBA_NUM_THREADS is {threads!r}; give an integer of at least 1, or unset it\n"


@pytest.mark.parametrize("arguments", [("cache", "info"), INFER])
def test_numba_that_compiles_nothing_is_refused_in_one_line(arguments: tuple[str, ...]) -> None:
    done = python("-m", "sparsenn", *arguments, NUMBA_DISABLE_JIT=1)
    assert done.returncode == 2
    assert done.stderr.startswith("error: numba compiles nothing where NUMBA_DISABLE_JIT is set")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("device", "meant"),
    [("gpu", "cuda"), ("GPU:1", "cuda:1"), ("nvidia", "cuda"), ("CUDA", "cuda"), ("cuda0", "cuda:0"), ("Cpu", "cpu")],
)
def test_other_names_of_devices_are_understood_in_the_message(device: str, meant: str) -> None:
    with pytest.raises(UsageError, match=f"unknown device '{device}'; did you mean '{meant}'"):
        Session(Network((Linear(np.eye(2)),)), device=device)
