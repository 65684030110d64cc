"""The registry: one place for names, and an answer for wrong ones."""

import pytest

from sparsenn import backends
from sparsenn.backends.base import register
from sparsenn.errors import DeviceError, SparseNNError, UsageError


def test_the_cpu_variants_come_from_plain_to_fast():
    names = [entry.name for entry in backends.variants("spmspm", "cpu")]
    assert names == ["sequential", "scipy", "scatter", "panel"]


def test_every_variant_has_one_line_of_summary():
    for entry in backends.variants():
        assert entry.summary.strip() == entry.summary
        assert 10 < len(entry.summary) < 100
        assert "\n" not in entry.summary


def test_unknown_names_list_the_known_ones():
    with pytest.raises(UsageError, match=r"unknown operation 'spmm'.*known: .*spmspm"):
        backends.variants("spmm")
    with pytest.raises(UsageError, match=r"unknown cpu kernel for spmspm 'gather'.*panel, scatter, scipy, sequential"):
        backends.variant("spmspm", "gather", "cpu")


def test_a_name_is_taken_once():
    with pytest.raises(SparseNNError, match="registered twice"):
        register(backends.variant("spmspm", "panel", "cpu"))


@pytest.mark.parametrize("device", ["cuda", "cuda:0", "cuda:12"])
def test_a_device_that_is_not_there_is_refused(device):
    with pytest.raises(DeviceError, match="use --device cpu"):
        backends.backend_for(device)


@pytest.mark.parametrize("device", ["", "gpu", "cuda:", "cuda:x", "CPU"])
def test_a_device_that_does_not_exist_is_refused(device):
    with pytest.raises(UsageError, match="unknown device"):
        backends.backend_for(device)
