"""Priors of the kernels of sparse layers: within a factor of two of recorded times, and how they grow."""

from dataclasses import replace
from typing import NamedTuple

import pytest

from sparsenn.backends import kernel_named
from sparsenn.backends.machine import A100, H200

KERNELS = ("resident", "chunks", "few_rows", "chunks_tf32", "two_of_four_float32", "two_of_four_tf32")


class Shape(NamedTuple):
    inputs: int
    outputs: int
    edges: int


def seconds(kernel, machine, layers, rows, **more):
    return kernel_named("spmspm", kernel, "cuda").seconds(machine, layers, rows, **more)


def square(width, degree, count):
    return [Shape(width, width, width * degree)] * count


LENET = [Shape(784, 300, 4470), Shape(300, 100, 570), Shape(100, 10, 100)]
CHOICE_0 = [Shape(64, 3000, 95_867), Shape(3000, 128, 192_150), Shape(128, 2048, 131_610), Shape(2048, 3000, 3_070_821)]

RECORDED = [
    ("resident", square(1024, 32, 24), 60_000, 14.19),
    ("resident", square(1024, 32, 24), 1000, 0.776),
    ("resident", square(1024, 32, 24), 100, 0.609),
    ("resident", square(1024, 32, 24), 1, 0.077),
    ("resident", square(1024, 102, 24), 1, 0.12),
    ("resident", square(4096, 32, 12), 20_000, 13.06),
    ("resident", square(4096, 32, 12), 1, 0.1),
    ("resident", square(16384, 32, 6), 100, 1.19),
    ("resident", square(4096, 819, 4), 1, 0.444),
    ("resident", square(8192, 1638, 4), 1, 0.788),
    ("resident", LENET, 10_000, 0.105),
    ("chunks", square(1024, 32, 24), 60_000, 8.094),
    ("chunks", square(1024, 102, 24), 1000, 0.617),
    ("chunks", square(4096, 32, 12), 20_000, 6.27),
    ("chunks", square(16384, 32, 6), 10_000, 9.521),
    ("chunks", square(16384, 164, 1), 10_000, 5.424),
    ("chunks", LENET, 10_000, 0.091),
    ("chunks", LENET, 1, 0.048),
    ("chunks", CHOICE_0, 4000, 2.22),
    ("chunks_tf32", square(16384, 164, 1), 10_000, 4.264),
    ("chunks_float16", square(16384, 164, 1), 10_000, 3.865),
    ("two_of_four_float32", square(1024, 102, 24), 60_000, 9.494),
    ("two_of_four_float32", square(1024, 102, 1), 60_000, 0.511),
    ("two_of_four_float32", square(4096, 205, 1), 60_000, 5.636),
    ("two_of_four_float32", square(4096, 819, 1), 60_000, 10.875),
    ("two_of_four_float32", CHOICE_0, 4000, 0.46),
    ("few_rows", square(2048, 102, 3), 1, 0.0123),
    ("few_rows", square(8192, 410, 3), 1, 0.0319),
    ("few_rows", square(8192, 1638, 3), 16, 0.158),
    ("few_rows", square(4096, 819, 3), 64, 0.154),
    ("few_rows", square(8192, 82, 3), 64, 0.0724),
    ("few_rows_float16", square(8192, 1638, 3), 1, 0.0535),
    ("two_of_four_tf32", square(1024, 102, 24), 60_000, 3.983),
    ("two_of_four_tf32", square(1024, 102, 1), 60_000, 0.279),
    ("two_of_four_tf32", square(4096, 819, 1), 60_000, 4.04),
    ("two_of_four_float16", square(4096, 205, 1), 60_000, 2.054),
]
"""Milliseconds that chains took on an H200 until the host had the outputs, where no row died."""


@pytest.mark.parametrize(("kernel", "layers", "rows", "taken"), RECORDED)
def test_a_prior_is_within_a_factor_of_two(kernel, layers, rows, taken):
    assert 0.5 <= 1e3 * seconds(kernel, H200, layers, rows) / taken <= 2


@pytest.mark.parametrize("kernel", KERNELS)
def test_more_layers_and_more_rows_take_longer(kernel):
    layers = square(1024, 32, 5)
    assert seconds(kernel, H200, layers[:1], 5000) < seconds(kernel, H200, layers, 5000)
    times = [seconds(kernel, H200, layers, rows) for rows in (1, 300, 5000, 60_000)]
    assert times == sorted(times)
    assert times[0] < times[-1]


@pytest.mark.parametrize("kernel", KERNELS)
def test_slower_machines_take_longer(kernel):
    layers = square(4096, 400, 2)
    slower = replace(H200, clock=H200.clock / 2, copy_bandwidth=H200.copy_bandwidth / 2)
    for machine in (slower, A100):
        assert seconds(kernel, machine, layers, 60_000) > 1.2 * seconds(kernel, H200, layers, 60_000)
