"""The kernels of mlp on a GPU against a float64 product, on awkward numbers of rows; and what they refuse."""

from itertools import pairwise

import numpy as np
import pytest
from dense_chains import exact, launched, layers_of

from sparsenn.backends.cuda.dense.cublas import CUBLAS
from sparsenn.backends.cuda.runtime.availability import ANY_GPU
from sparsenn.backends.machine import A100, H200
from sparsenn.layers import Identity, Linear, ReLU, Sigmoid, Tanh
from sparsenn.studies.ladder import ladder_for
from sparsenn.studies.mlp import float32, half
from sparsenn.studies.mlp.ladder import random_problem

STUDY = (72, 64, 64, 4)
RUNGS = ladder_for("mlp").rungs["cuda"]
GENERAL = [*float32.KERNELS[:2], CUBLAS]
STUDIES = [*float32.KERNELS, *half.KERNELS]
ALLOWED = {"float32": 2e-5, "tf32": 5e-3, "float16": 1e-2}
"""In parts of the largest output."""

rungs = pytest.mark.parametrize("entry", [pytest.param(entry, marks=pytest.mark.gpu, id=entry.name) for entry in RUNGS])
general = pytest.mark.parametrize("entry", GENERAL, ids=lambda entry: entry.name)


def assert_near(found, expected, precision="float32"):
    assert found.shape == expected.shape
    difference = np.abs(found - expected).max(initial=0.0)
    assert difference <= ALLOWED[precision] * np.abs(expected).max(initial=1e-30)


def test_specialised_rungs_say_what_they_cannot_run(rng):
    layers, _ = random_problem(2, STUDY, 0)
    others = [entry.name for entry in RUNGS if entry.needs[0] != ANY_GPU]
    assert others == ["warpgroup_float32", "warpgroup_tf32", "warpgroup_half"]
    for machine, unable in ((H200, []), (A100, others)):
        assert [entry.name for entry in RUNGS if entry.why_not(machine, layers) is not None] == unable
    relu, last = ReLU(), Identity()
    strange = {
        "72 - 64 - 4": layers_of(rng, (72, 64, 4), (relu, last)),
        "4 - 64 - 64 - 72": layers_of(rng, STUDY[::-1], (relu, relu, last)),
        "ReLU without clip": layers_of(rng, STUDY, (relu, ReLU(6.0), last)),
        "ReLU without": layers_of(rng, STUDY, (Tanh(), relu, last)),
        "no activation after the last": layers_of(rng, STUDY, (relu, relu, relu)),
    }
    for part, others in strange.items():
        for entry in RUNGS:
            reason = entry.why_not(H200, others)
            if entry in STUDIES and entry not in GENERAL:
                assert part in reason
            else:
                assert reason is None


@pytest.mark.parametrize(("parts", "turn"), [(2, 2), (2, 4), (4, 1)])
def test_parts_of_packed_weights_add_up_to_the_product(parts, turn, rng):
    weights = rng.integers(-2000, 2000, (72, 64)).astype(np.float32)  # exact in half precision
    row = rng.integers(-8, 9, 72).astype(np.float64)
    order = half.packing_order(72, parts, turn)
    packed = half.pack_weights(weights, order)
    assert packed.shape == (36 // parts, 64, parts, 2)
    assert packed.dtype == np.float16
    assert packed.flags.c_contiguous
    sums = np.einsum("iope,ipe->o", packed.astype(np.float64), row[order])
    assert np.array_equal(sums, row @ weights.astype(np.float64))


@rungs
@pytest.mark.parametrize("rows", [0, 1, 2, 3, 31, 32, 33, 1000, 12_801, 100_003])
@pytest.mark.parametrize("biased", [True, False])
def test_rung_is_near_the_exact_answer(entry, rows, biased, rng):
    layers = layers_of(rng, STUDY, (ReLU(), ReLU(), Identity()), biased=biased)
    features = rng.normal(size=(rows, 72)).astype(np.float32)
    first = launched(entry, layers, features)
    assert_near(first, exact(layers, features), entry.precision)
    if entry in half.KERNELS:
        assert launched(entry, layers, features).tobytes() == first.tobytes()


@rungs
def test_rung_puts_every_number_in_its_place(entry):
    """Small integers: products and sums are exact, in half precision too, and each output tells which input it is."""
    passing = np.eye(72, 64), np.eye(64)[::-1], np.eye(64, 4, -5)
    layers = tuple(Linear(weights, None, ReLU()) for weights in passing[:2])
    layers += (Linear(passing[2], [0.0, 0.25, 0.5, 1.0], Identity()),)
    features = ((np.arange(257)[:, None] * 7 + np.arange(72) * 5) % 97 + 1).astype(np.float32)
    expected = features[:, [58, 57, 56, 55]] + np.float32([0.0, 0.25, 0.5, 1.0])
    assert np.array_equal(exact(layers, features), expected)
    assert np.array_equal(launched(entry, layers, features), expected)


@rungs
def test_every_row_and_output_has_its_own_answer(entry, rng):
    """Small whole numbers, exact in half precision through all layers, so that every bit must agree."""
    weights = [rng.integers(-1, 2, shape) * (rng.random(shape) < 0.2) for shape in pairwise(STUDY)]
    biases = [rng.integers(-3, 4, width) for width in STUDY[1:]]
    layers = tuple(map(Linear, weights, biases, (ReLU(), ReLU(), Identity())))
    features = rng.integers(-3, 4, (777, 72)).astype(np.float32)
    assert np.array_equal(launched(entry, layers, features), exact(layers, features))


@pytest.mark.gpu
@general
@pytest.mark.parametrize("widths", [(1, 1), (5, 3), (40, 300, 33, 515, 1, 257), (3, 1, 1000)], ids=str)
@pytest.mark.parametrize("rows", [0, 1, 33, 1000])
@pytest.mark.parametrize("activation", [ReLU(), ReLU(0.5), Sigmoid(), Tanh(), Identity()], ids=str)
def test_general_rung_takes_any_stack(entry, widths, rows, activation, rng):
    layers = layers_of(rng, widths, [activation] * (len(widths) - 1))
    features = rng.normal(size=(rows, widths[0])).astype(np.float32)
    assert_near(launched(entry, layers, features), exact(layers, features))
