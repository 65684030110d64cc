"""The checker itself: it must object to a wrong answer."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import assert_close, expected
from strategies import inputs_for, mixed_networks, networks_with_inputs

from sparsenn import Session, backends
from sparsenn.formats import CSR, from_dense
from sparsenn.network import Network


@pytest.fixture
def problem(rng):
    network = Network.from_scipy([_random(rng, 20, 15), _random(rng, 15, 10)], bias=-0.1)
    return network, from_dense(rng.random((8, 20)))


def _random(rng, rows, columns):
    return from_dense(rng.normal(size=(rows, columns)) * (rng.random((rows, columns)) < 0.5)).to_scipy()


def _outputs(network, inputs):
    return CSR.from_scipy(backends.oracle.run(network, inputs))


@pytest.mark.parametrize("wrong", [1e-3, np.nan, np.inf])
def test_one_wrong_value_is_rejected(problem, wrong):
    outputs = _outputs(*problem)
    values = outputs.expanded_values().copy()
    values[3] += wrong
    outputs = replace(outputs, values=values)
    with pytest.raises(Exception, match=r"differ|finite"):
        assert_close(outputs, *problem)


@given(networks_with_inputs())
def test_the_reference_is_as_close_as_float64_allows(problem):
    """Two programs that have nothing in common but NumPy."""
    network, inputs = problem
    found = backends.oracle.run(network, inputs).toarray()
    values, error = expected(network, inputs)
    assert (np.abs(found - values) <= 2.0**-24 * error).all()


@given(mixed_networks(), st.data())
def test_the_reference_is_right_for_dense_layers_too(network, data):
    inputs = data.draw(inputs_for(network.inputs))
    values, error = expected(network, inputs)
    found = Session(network, device="reference")(inputs, form="dense")
    assert (np.abs(found - values) <= 2.0**-24 * error).all()


def test_the_bound_is_tight_enough_to_see_a_half_precision_error(problem):
    values, error = expected(*problem)
    assert error.max() < 2.0**-11 * np.abs(values).max()
