"""The priors of the kernels of mlp, held against recorded times."""

import json
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from sparsenn.backends.cuda.dense import cublas, fused, warpgroup
from sparsenn.backends.machine import A100, H200

RESULTS = Path(__file__).parents[4] / "bench" / "results"
KERNELS = {kernel.name: kernel for kernel in (*fused.KERNELS, *warpgroup.KERNELS, *cublas.KERNELS)}

ON_TENSOR_CORES = {"tensor_float32", "tensor_tf32", "tensor_half"}
"""Kernels of narrow stacks; their calls that are recorded as whole were of wider ones, which they no longer take."""

CHAIN = re.compile(r"(?P<widths>[\d-]+), \d+ %, (?P<rows>[\d,]+) rows, (?P<precision>\w+)")
"""A cell of fully connected layers, as the record names it."""

CALL = 16e-6
"""Seconds of a session's call besides the kernels."""

FEW = 0.05
"""The share of recorded calls whose prior may be off by somewhat more than a factor of two."""

MANY = 1_000_000
"""Rows from which on a launch takes next to nothing of the time of a kernel."""


def layers_of(widths):
    """Return layers without weights, which no prior reads."""
    return [SimpleNamespace(inputs=inputs, outputs=outputs) for inputs, outputs in pairwise(widths)]


def rows_of(name):
    return json.loads((RESULTS / name).read_text())["rows"]


def whole_calls():
    """Yield kernel, widths, rows, bytes of a number and seconds of the calls of one dense kernel on an H200."""
    for row in rows_of("h200/choice.json"):
        cell = CHAIN.fullmatch(row["cell"])
        if cell is None:
            continue
        widths, half = [int(width) for width in cell["widths"].split("-")], cell["precision"] == "float16"
        times = {name.rsplit(" ", 1)[0]: time for name, time in row["candidates"].items() if ", " not in name}
        names = KERNELS.keys() if max(widths) <= fused.IN_REGISTERS else KERNELS.keys() - ON_TENSOR_CORES
        for name in names & times.keys():
            rounded = half and KERNELS[name].precision != "float16"  # by a pass of the session's own
            if not rounded:
                rows = int(cell["rows"].replace(",", ""))
                yield KERNELS[name], widths, rows, 2 if half else 4, times[name] / 1e3


def assert_within_a_factor_of_two(ratios):
    beyond = {cell: ratio for cell, ratio in ratios.items() if not 0.5 < ratio < 2.0}
    assert len(beyond) <= FEW * len(ratios), beyond
    assert all(0.4 < ratio < 2.5 for ratio in beyond.values()), beyond


def test_priors_are_within_a_factor_of_two_of_whole_calls():
    ratios = {}
    for kernel, widths, rows, number_bytes, seconds in whole_calls():
        more = {"row_bytes": number_bytes} if kernel.half_rows else {}
        prior = CALL + kernel.seconds(H200, layers_of(widths), rows, **more)
        ratios[kernel.name, tuple(widths), rows] = prior / seconds
    assert len(ratios) > 40
    unseen = KERNELS.keys() - ON_TENSOR_CORES - {name for name, *_ in ratios}
    assert unseen <= {"fused_fma"}, "it may be close to the fastest in none of the calls; many rows are below"
    assert_within_a_factor_of_two(ratios)


def test_priors_are_within_a_factor_of_two_of_kernels_on_many_rows():
    table = json.loads((RESULTS / "h200/mlp.json").read_text())
    machine = replace(H200, copy_bandwidth=table["configuration"]["copy_bytes_per_second"])
    layers, ratios = layers_of([72, 64, 64, 4]), {}
    for row in table["rows"]:
        kernel = KERNELS.get(row["kernel"])
        if kernel is not None and row["rows"] >= MANY:
            more = {"row_bytes": 4} if kernel.half_rows else {}
            prior = kernel.seconds(machine, layers, row["rows"], **more)
            ratios[kernel.name] = prior / (row["milliseconds"] / 1e3)
    assert len(ratios) > 7
    assert_within_a_factor_of_two(ratios)


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_priors_grow_with_rows_and_on_a_slower_machine(kernel):
    layers = layers_of((256,) * 5)
    found = [kernel.seconds(H200, layers, rows) for rows in (1, 128, 10_000, 10**6)]
    assert found == sorted(found)
    assert found[0] < found[-1] / 20
    assert kernel.seconds(A100, layers, 10**6) > 1.2 * found[-1]


def test_products_take_a_launch_a_layer_and_a_pass_where_rows_are_rounded():
    few, many = layers_of((64,) * 3), layers_of((64,) * 21)
    assert cublas.seconds("tf32", H200, many, 1) > 5 * cublas.seconds("tf32", H200, few, 1)
    halves, floats = (cublas.seconds("float16", H200, few, 10**6, row_bytes) for row_bytes in (2, 4))
    assert floats > 1.5 * halves
