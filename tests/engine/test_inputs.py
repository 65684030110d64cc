"""The forms in which a caller may have the inputs, and what is no input."""

import numpy as np
import pytest
import scipy.sparse as sp

import sparsenn
from sparsenn.errors import InputError, MatrixError, ShapeError, UsageError
from sparsenn.layers import Flatten, Linear
from sparsenn.network import Network

FORMS = {
    "float32": lambda dense: dense,
    "float64": lambda dense: dense.astype(np.float64),
    "column-major": np.asfortranarray,
    "csr_matrix": sp.csr_matrix,
    "csr_array": sp.csr_array,
    "csc_matrix": sp.csc_matrix,
    "coo_array": sp.coo_array,
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_any_matrix_gives_what_csr_gives(network, inputs, form):
    dense = inputs.to_scipy().toarray()
    expected = sparsenn.infer(network, inputs, device="cpu")
    given = form(dense)
    chosen = sparsenn.plan(network, given, device="cpu")
    assert (chosen.inputs, chosen.density) == (100, inputs.density)
    for result in (sparsenn.infer(network, given, device="cpu"), sparsenn.execute(chosen, given)):
        np.testing.assert_array_equal(result.outputs.to_scipy().toarray(), expected.outputs.to_scipy().toarray())
        np.testing.assert_array_equal(result.categories, expected.categories)


def test_integers_are_taken(network):
    counts = np.arange(40).reshape(2, 20)
    result = sparsenn.infer(network, counts, device="cpu").outputs.to_scipy().toarray()
    expected = sparsenn.infer(network, counts.astype(np.float32), device="cpu").outputs.to_scipy().toarray()
    np.testing.assert_array_equal(result, expected)


def test_images_are_taken_as_they_are(rng):
    lenet = Network((Flatten(), Linear(rng.normal(size=(24, 3)))), (2, 3, 4))
    images = rng.random((5, 2, 3, 4)).astype(np.float32)
    whole = sparsenn.infer(lenet, images, device="cpu").outputs.to_scipy().toarray()
    rows = sparsenn.infer(lenet, images.reshape(5, 24), device="cpu").outputs.to_scipy().toarray()
    np.testing.assert_array_equal(whole, rows)
    with pytest.raises(MatrixError, match="two dimensions, not 4"):
        sparsenn.infer(lenet, images.transpose(0, 2, 3, 1))


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (np.zeros((3, 19)), ShapeError, "the inputs have 19 columns; layer 1 takes 20"),
        (sp.csr_matrix((3, 21)), ShapeError, "the inputs have 21 columns; layer 1 takes 20"),
        (np.zeros(20), MatrixError, "two dimensions, not 1"),
        (np.full((3, 20), 1j), MatrixError, "real numbers"),
        (sp.csr_matrix(np.full((3, 20), 1j)), MatrixError, "real numbers"),
        (np.full((3, 20), "1"), MatrixError, "real numbers"),
        ([[1.0] * 20], InputError, "the inputs are a list; take a sparsenn.CSR, a SciPy sparse matrix or a NumPy"),
        (None, InputError, "the inputs are a NoneType"),
        ("inputs.h5", InputError, "the inputs are a str"),
    ],
)
def test_what_is_no_input_is_refused(network, inputs, given, error, message):
    chosen = sparsenn.plan(network, inputs, device="cpu")
    for run in (
        lambda: sparsenn.plan(network, given),
        lambda: sparsenn.infer(network, given),
        lambda: sparsenn.execute(chosen, given),
    ):
        with pytest.raises(error, match=message):
            run()


def test_arguments_that_are_swapped_or_of_another_kind(network, inputs):
    for run in (sparsenn.plan, sparsenn.infer):
        with pytest.raises(UsageError, match=r"the network is a CSR; what is run is a sparsenn\.Network"):
            run(inputs, network)
    with pytest.raises(UsageError, match=r"the plan is a Network; what is executed is what sparsenn\.plan returns"):
        sparsenn.execute(network, inputs)
