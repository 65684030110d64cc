"""The challenge itself: the official network with all 60,000 official inputs."""

import numpy as np
import pytest

from sparsenn import infer
from sparsenn.datasets import mnist_inputs
from sparsenn.io.challenge.folder import read_official

OFFICIAL_CATEGORIES = 1812


@pytest.fixture(scope="module")
def official(official_folder):
    return read_official(official_folder)


@pytest.fixture(scope="module")
def all_inputs(mnist_folder):
    return mnist_inputs(1024, folder=mnist_folder)


@pytest.mark.parametrize("merging", [True, False])
def test_all_inputs_give_the_official_number_of_categories(official, all_inputs, merging):
    result = infer(official.network, all_inputs, merging=merging)
    assert result.categories.size == OFFICIAL_CATEGORIES
    first = result.categories[result.categories < official.inputs.shape[0]]
    assert np.array_equal(first, official.truth)


@pytest.mark.parametrize("kernel", ["sequential", "scipy", "scatter", "panel"])
def test_every_kernel_gives_the_true_categories_of_the_first_images(official, kernel):
    result = infer(official.network, official.inputs, kernel=kernel)
    assert np.array_equal(result.categories, official.truth)


def test_a_changed_weight_gives_other_categories(official):
    """The comparison above can fail: with another bias the answer is another one."""
    result = infer(official.network.with_bias(-0.2), official.inputs)
    assert not np.array_equal(result.categories, official.truth)
