"""The table of tuned numbers: read, forgotten, and used by plans."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest

from sparsenn import backends, infer, radixnet
from sparsenn.backends import Tunable, tuning_table
from sparsenn.backends.cpu import panel
from sparsenn.backends.cpu.processor import processor_of
from sparsenn.backends.tuning_table import (
    FILE,
    Tuned,
    TuningWarning,
    forget,
    readable_table,
    table,
    tuned,
    with_tuned_numbers,
)
from sparsenn.engine import plan
from sparsenn.errors import FileFormatError
from sparsenn.formats import from_dense

DEVICE = "A chip, 2 threads"
SIZES = "width 64, rows 32-63"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARSENN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("sparsenn.backends.cpu.host_machine", lambda: processor_of("A chip", 2))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def problem():
    rows = (np.random.default_rng(3).random((40, 64)) < 0.4).astype(np.float32)
    return radixnet(64, 3, radices=(2, 2), kronecker=16, bias=-0.3), from_dense(rows)


def entry(**changes):
    return replace(
        Tuned(DEVICE, "spmspm", "panel", SIZES, {"lanes": 8, "chunk_rows": 512}, 1.0, 2.0, 3, "0"), **changes
    )


def written(*entries):
    tuning_table.write_record(FILE, tuning_table.VERSION, {"entries": [asdict(found) for found in entries]})


def test_entries_are_forgotten():
    written(entry(), entry(rung="coarsened"), entry(operation="conv2d"), entry(sizes="others"))
    assert forget("nothing of this name") == 0
    assert forget("panel", "conv2d") == 1
    assert forget("coarsened") == 1
    assert {found.rung for found in table()} == {"panel"}
    assert forget() == 2
    assert table() == ()
    assert forget() == 0


DAMAGED = [
    "",
    "{",
    "[1]",
    '{"version": 2, "entries": []}',
    '{"version": 1, "entries": {}}',
    '{"version": 1, "entries": [1]}',
    '{"version": 1, "entries": [{}]}',
    *(
        json.dumps({"version": 1, "entries": [asdict(entry()), asdict(entry()) | change]})
        for change in (
            {"novel": 1},
            {"device": 1},
            {"rung": None},
            {"seconds": 0},
            {"seconds": float("nan")},
            {"untuned_seconds": float("inf")},
            {"untuned_seconds": "1"},
            {"runs": 1.5},
            {"parameters": []},
            {"parameters": {"lanes": "8"}},
            {"parameters": {"lanes": True}},
            {"parameters": {"lanes": 8.0}},
        )
    ),
]


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_table_is_told_and_counts_as_empty(folder, problem, text):
    folder.mkdir()
    (folder / FILE).write_text(text)
    with pytest.raises(FileFormatError, match=FILE):
        table()
    for use in (
        readable_table,
        lambda: tuned("spmspm", "panel", DEVICE, SIZES),
        lambda: with_tuned_numbers(backends.kernels("spmspm", "cpu"), backends.backend_for("cpu")),
    ):
        with pytest.warns(TuningWarning, match=r"kept numbers are not used: .*tuning\.json"):
            use()
    with pytest.raises(FileFormatError):
        forget("panel")
    assert (folder / FILE).read_text() == text
    assert forget() == 0
    assert table() == ()


# ---- Using it ---------------------------------------------------------------------------------------------------


@pytest.fixture
def strides(monkeypatch):
    """Every number of lanes that a panel was asked for."""
    asked = []
    counted = panel._stride

    def stride(rows, widest, lanes, *more):
        asked.append(lanes)
        return counted(rows, widest, lanes, *more)

    monkeypatch.setattr(panel, "_stride", stride)
    return asked


def test_a_plan_runs_kernels_with_the_numbers_that_are_kept(problem, strides):
    network, inputs = problem
    switches = {"device": "cpu", "kernel": "panel", "merging": False, "deduplication": False, "compaction": False}
    before = infer(network, inputs, **switches)
    assert set(strides) == {None}
    written(entry(parameters={"lanes": 16, "chunk_rows": 512}))
    strides.clear()
    after = infer(network, inputs, **switches)
    assert set(strides) - {None} == {16}  # estimates ask with none
    assert np.array_equal(after.outputs.to_scipy().toarray(), before.outputs.to_scipy().toarray())
    assert f"with numbers tuned for {SIZES}" in str(plan(network, inputs, device="cpu", kernel="panel"))


@pytest.mark.parametrize(
    "change",
    [
        {"sizes": "width 64, rows 64-127"},
        {"device": "Another chip"},
        {"rung": "scipy"},
        {"operation": "conv2d"},
        {"parameters": {}},
        {"parameters": {"lanes": 7, "chunk_rows": 512}},
        {"parameters": {"lanes": 8}},
    ],
    ids=str,
)
def test_other_entries_change_nothing(problem, strides, change):
    written(entry(**change))
    infer(*problem, device="cpu", kernel="panel", merging=False)
    assert set(strides) == {None}


@pytest.mark.parametrize(("number", "launched"), [(5, 5), (3, "as it comes")])
def test_numbers_that_do_not_fit_are_passed_over(number, launched):
    tunable = Tunable(
        parameters={"n": (3, 5)},
        launch_with=lambda numbers: lambda step: numbers["n"],
        sizes=lambda step: f"sizes of {step}",
        fits=lambda numbers, step: "3 never fits" if numbers["n"] == 3 else None,
    )
    panels = backends.kernel_named("spmspm", "panel", "cpu")
    written(entry(sizes="sizes of this", parameters={"n": number}))
    given = replace(panels, launch=lambda step: "as it comes", tunable=tunable)
    (kernel,) = with_tuned_numbers([given], backends.backend_for("cpu"))
    assert kernel.launch("this") == launched
    assert kernel.launch("another") == "as it comes"


def test_kernels_without_an_entry_stay_what_they_are(problem):
    backend, kernels = backends.backend_for("cpu"), backends.kernels("spmspm", "cpu")
    assert with_tuned_numbers(kernels, backend) == kernels
    written(entry())
    changed = with_tuned_numbers(kernels, backend)
    assert [one.name for one in changed if one not in kernels] == ["panel"]
    assert changed == tuple(
        replace(one, launch=new.launch, summary=new.summary) for one, new in zip(kernels, changed, strict=True)
    )
