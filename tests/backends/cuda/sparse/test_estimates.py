"""Estimates of how long sparse layers take: of the machine that they were fitted on, and of others."""

from dataclasses import replace

import numpy as np
import pytest

from sparsenn.backends.cuda.sparse.estimates import chunks_seconds, half_chunks_seconds, resident_seconds
from sparsenn.backends.machine import A100, H200
from sparsenn.formats import from_dense
from sparsenn.layers import ReLU, SparseLinear


@pytest.fixture(scope="module")
def layers():
    rng = np.random.default_rng(3)
    matrix = ((rng.random((1024, 1024)) < 0.03) * rng.normal(size=(1024, 1024))).astype(np.float32)
    return (SparseLinear.from_scipy(from_dense(matrix).to_scipy(), -0.1, ReLU()),) * 5


@pytest.mark.parametrize("estimate", [chunks_seconds, resident_seconds])
def test_more_layers_and_more_rows_take_longer(layers, estimate):
    five, one = estimate(H200, layers, 5000), estimate(H200, layers[:1], 5000)
    assert one < five <= 5 * one
    times = [estimate(H200, layers, rows) for rows in (0, 1, 100, 5000, 60_000)]
    assert times == sorted(times)
    assert times[0] > 0
    assert 10 * five < estimate(H200, layers * 20, 5000) < 40 * five


class Shape:
    """What estimates ask of a layer."""

    def __init__(self, inputs, outputs, edges):
        self.inputs, self.outputs, self.edges = inputs, outputs, edges


STACKS = {
    "1024, 32": [Shape(1024, 1024, 32 * 1024)] * 24,
    "1024, 102": [Shape(1024, 1024, 102 * 1024)] * 24,
    "4096, 32": [Shape(4096, 4096, 32 * 4096)] * 12,
    "16384, 32": [Shape(16384, 16384, 32 * 16384)] * 6,
    "lenet": [Shape(784, 300, 4470), Shape(300, 100, 570), Shape(100, 10, 100)],
}

TAKEN = [
    (resident_seconds, "1024, 32", 60_000, 14.19e-3),
    (resident_seconds, "1024, 32", 1000, 0.776e-3),
    (resident_seconds, "1024, 32", 100, 0.609e-3),
    (resident_seconds, "1024, 32", 1, 0.077e-3),
    (resident_seconds, "1024, 102", 60_000, 27.3e-3),
    (resident_seconds, "1024, 102", 1, 0.120e-3),
    (resident_seconds, "4096, 32", 20_000, 13.06e-3),
    (resident_seconds, "4096, 32", 1, 0.100e-3),
    (resident_seconds, "16384, 32", 100, 1.19e-3),
    (resident_seconds, "lenet", 10_000, 0.105e-3),
    (chunks_seconds, "1024, 32", 60_000, 10.17e-3),
    (chunks_seconds, "1024, 102", 1000, 0.617e-3),
    (chunks_seconds, "4096, 32", 20_000, 9.49e-3),
    (chunks_seconds, "lenet", 10_000, 0.091e-3),
    (chunks_seconds, "lenet", 1, 0.048e-3),
]
"""What stacks took on an H200 until the host had the outputs, where no row died."""


@pytest.mark.parametrize(("estimate", "stack", "rows", "taken"), TAKEN)
def test_estimates_are_near_what_an_h200_took(estimate, stack, rows, taken):
    assert estimate(H200, STACKS[stack], rows) == pytest.approx(taken, rel=0.3)


CHALLENGE = {
    (1024, 120): (0.42e-3, [60000, 60000, 60000, 23042, 23042, 22688, 3629, 3418, 3040, 1909, 1844, 1806, 861]),
    (4096, 120): (1.01e-3, [60000, *[54554] * 3, *[14669] * 3, *[3700] * 3, *[1944] * 3, 803]),
    (16384, 120): (2.55e-3, [60000, *[52630] * 3, *[16365] * 3, *[4358] * 3, *[2639] * 3, 1078]),
    (65536, 120): (10.1e-3, [60000, *[52502] * 3, *[15346] * 3, *[5191] * 3, *[2850] * 3, 1658]),
}
"""What the challenge's problems took, and how many of 60,000 rows the first layers computed. Few are left later on."""

WIDTHS = {1024: 64, 4096: 256, 16384: 1024, 65536: 4096}
"""Outputs of the challenge's layers once equal ones are merged."""


@pytest.mark.parametrize(("problem", "known"), CHALLENGE.items(), ids=str)
def test_estimates_know_that_rows_die_and_become_equal(problem, known):
    (neurons, count), (taken, rows) = problem, known
    width = WIDTHS[neurons]
    first = [Shape(neurons, width, 2 * neurons), *[Shape(width, width, 2 * width)] * 7]
    stack = [*first, *[Shape(width, width, 30 * width)] * (count - len(first))]
    alive = np.array([*rows, *[rows[-1]] * (18 - len(rows)), *[10] * (count - 18)]) / 60_000
    assert resident_seconds(H200, stack, 60_000, alive, "iso") == pytest.approx(taken, rel=0.3)
    assert chunks_seconds(H200, stack, 60_000) > 3 * taken


def test_multiprocessors_wait_for_a_narrow_layer_among_wide_ones():
    """An H200 took 0.692 ms; no row was left for the last layer."""
    stack = [
        Shape(64, 3000, 95_867),
        Shape(3000, 128, 192_150),
        Shape(128, 2048, 131_610),
        Shape(2048, 3000, 3_070_821),
    ]
    assert resident_seconds(H200, stack, 4000, [1.0, 1.0, 1.0, 0.0]) == pytest.approx(0.692e-3, rel=0.1)


def test_rows_that_die_within_a_stage_in_tiles_leave_at_its_end():
    stack = [Shape(4096, 128, 26_000), Shape(128, 64, 400), Shape(64, 128, 400)]
    times = [resident_seconds(H200, stack, 60_000, [1.0, *alive]) for alive in ([1.0, 1.0], [0.06, 0.001], [0.06, 0.0])]
    assert max(times) == min(times)


@pytest.mark.parametrize("estimate", [chunks_seconds, half_chunks_seconds])
def test_the_last_layer_counts_once_in_chains_of_any_length(estimate):
    inner, last = Shape(1024, 1024, 32 * 1024), Shape(1024, 16384, 32 * 16384)
    times = [estimate(H200, [inner] * (length - 1) + [last], 20_000) for length in (31, 32, 33, 34)]
    assert times == sorted(times)
    assert times[-1] < 1.15 * times[0]


def test_inputs_of_one_value_are_counted():
    stack = [Shape(65536, 4096, 2 * 65536), Shape(4096, 4096, 2 * 4096)]
    assert resident_seconds(H200, stack, 60_000, None, "iso") < 0.5 * resident_seconds(H200, stack, 60_000)


def test_rows_that_leave_take_no_time_in_resident_alone(layers):
    share = [1.0, 0.5, 0.1, 0.01, 0.001]
    assert resident_seconds(H200, layers, 60_000, share) < 0.75 * resident_seconds(H200, layers, 60_000)
    assert resident_seconds(H200, layers, 60_000, [1.0] * 5) == resident_seconds(H200, layers, 60_000)


def test_half_the_clock_takes_up_to_twice_the_time(layers):
    slower = replace(H200, clock=H200.clock / 2)
    for estimate in (chunks_seconds, resident_seconds):
        assert 1.6 < estimate(slower, layers, 60_000) / estimate(H200, layers, 60_000) <= 2


def test_fewer_and_slower_multiprocessors_take_longer(layers):
    for estimate in (chunks_seconds, resident_seconds):
        assert estimate(A100, layers, 60_000) > 1.2 * estimate(H200, layers, 60_000)


def test_wide_layers_of_many_rows_are_left_to_chunks(layers):
    matrix = from_dense(np.ones((2048, 2048), np.float32)).to_scipy()
    wide = [SparseLinear.from_scipy(matrix, -0.1, ReLU())]
    assert chunks_seconds(H200, wide, 60_000) < resident_seconds(H200, wide, 60_000)
    assert chunks_seconds(H200, layers, 1) > resident_seconds(H200, layers, 1)


def test_few_rows_gain_nothing_in_halves():
    """An H100 took 0.320 ms for 32 rows in halves, and 0.250 in float32; for 256 0.635 and 0.652."""
    layers = [Shape(8192, 8192, 819 * 8192)] * 2
    assert half_chunks_seconds(H200, layers, 32) > chunks_seconds(H200, layers, 32)
    assert half_chunks_seconds(H200, layers, 256) < chunks_seconds(H200, layers, 256)
