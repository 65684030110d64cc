"""Machines as values: their rates, and the names by which users ask for them."""

from dataclasses import replace

import pytest

from sparsenn.backends import MACHINES, Machine, machine_named
from sparsenn.backends.machine import A100, H200, RTX_4090
from sparsenn.errors import UsageError


def test_rates_are_those_of_the_architecture():
    assert H200.multiply_adds("float32") == 128 * 132 * H200.clock
    assert H200.multiply_adds("tf32") == 8 * H200.multiply_adds("float32")
    assert A100.multiply_adds("float16") == 1024 * 108 * A100.clock
    assert RTX_4090.multiply_adds("tf32") == RTX_4090.multiply_adds("float32")


@pytest.mark.parametrize(("capability", "as_that_of"), [(89, 86), (87, 86), (103, 100), (121, 120), (75, 80)])
def test_an_architecture_that_is_not_listed_is_as_the_one_before(capability, as_that_of):
    of = {number: replace(H200, capability=number) for number in (capability, as_that_of)}
    for precision in ("float32", "tf32", "float16"):
        assert of[capability].multiply_adds(precision) == of[as_that_of].multiply_adds(precision)


@pytest.mark.parametrize(("capability", "warps"), [(80, 64), (86, 48), (89, 48), (90, 64), (100, 64), (120, 48)])
def test_warps_are_those_of_the_architecture(capability, warps):
    assert replace(H200, capability=capability).warps == warps


def test_shares_are_in_parts_of_the_machine_that_estimates_were_fitted_to():
    for precision in ("float32", "tf32", "float16"):
        assert H200.share(precision) == pytest.approx(1)
    assert A100.share("float32") == pytest.approx(0.5)
    assert RTX_4090.share("float16") == pytest.approx(1 / 8)


def test_machines_are_known_by_short_names():
    assert machine_named("h200") is H200
    assert all(machine_named(name) is machine for name, machine in MACHINES.items())
    with pytest.raises(UsageError, match=r"unknown machine 'H100'.*a100, h200, rtx-4090"):
        machine_named("H100")


def test_equal_machines_are_equal():
    assert replace(H200) == H200 != replace(H200, multiprocessors=66)
    assert {H200: 1}[replace(H200)] == 1
    assert Machine("some processor", "cpu", 2).capability == 0
