"""Which CUDA kernel a convolution gets: that which an H200 was seen to be fastest with; and on other machines."""

from dataclasses import replace

import numpy as np
import pytest

from sparsenn.backends import automatic, kernel_named
from sparsenn.backends.cuda.conv import estimates
from sparsenn.backends.machine import A100, H200, MACHINES, RTX_4090
from sparsenn.engine.kernels import choose_convolution
from sparsenn.errors import UsageError
from sparsenn.layers import Conv2d

FEW = {"conv_tensor_float32", "conv_tensor_tf32", "conv_tensor_half"}
MANY = {"conv_warpgroup_float32", "conv_warpgroup_tf32", "conv_warpgroup_half"}

machines = pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
precisions = pytest.mark.parametrize("precision", ["float32", "tf32", "float16"])
automatic_kernels = pytest.mark.parametrize("kernel", automatic("conv2d", "cuda"), ids=lambda kernel: kernel.name)


def chosen(precision, image, filters, kernel, machine=H200, **steps):
    enough = [entry for entry in automatic("conv2d", "cuda") if entry.precision in (precision, "float32")]
    weights = np.ones((filters, image[0] // steps.get("groups", 1), kernel, kernel))
    return choose_convolution(enough, machine, Conv2d(weights, **steps), image, 0).kernel


def seconds(kernel, machine):
    return kernel.seconds(machine, Conv2d(np.ones((8, 32, 3, 3)), padding=1), (32, 28, 28))


def test_the_kernels_of_auto_in_the_order_of_preference():
    found = {}
    for kernel in automatic("conv2d", "cuda"):
        found.setdefault(kernel.precision, []).append(kernel.name)
    assert found == {
        "float32": [
            "conv_tensor_float32",
            "conv_implicit_float32",
            "conv_warpgroup_float32",
            "conv_register_tiled",
            "conv_unrolled",
        ],
        "tf32": ["conv_tensor_tf32", "conv_implicit_tf32", "conv_warpgroup_tf32"],
        "float16": ["conv_tensor_half", "conv_implicit_half", "conv_warpgroup_half"],
    }


@automatic_kernels
@machines
def test_every_kernel_of_auto_gives_an_estimate(kernel, machine):
    assert 0 < seconds(kernel, machine) < 1


@precisions
def test_few_channels_and_many_have_kernels_of_their_own(precision):
    for image, filters in (((1, 86, 86), 4), ((4, 40, 40), 16)):
        found = chosen(precision, image, filters, 7)
        assert (found.name in FEW, found.precision) == (True, precision)
    found = chosen(precision, (512, 14, 14), 512, 3, padding=1)
    assert (found.name in MANY, found.precision) == (True, precision)


@precisions
@machines
def test_any_convolution_finds_a_kernel_that_keeps_the_precision(precision, machine):
    for steps in ({"groups": 8}, {"stride": 5, "dilation": 3}, {"groups": 32, "stride": 2, "padding": 1}):
        assert chosen(precision, (32, 28, 28), 32, 3, machine, **steps).precision in (precision, "float32")
    assert chosen(precision, (32, 28, 28), 32, 3, machine, groups=8).name == "conv_unrolled"


def test_a_kernel_of_less_precision_is_no_choice():
    refused = [kernel_named("conv2d", "conv_tensor_half", "cuda")]
    with pytest.raises(UsageError, match="stride"):
        choose_convolution(refused, H200, Conv2d(np.ones((4, 1, 7, 7)), stride=2), (1, 86, 86), 0)


@precisions
@pytest.mark.parametrize("machine", [A100, RTX_4090], ids=lambda machine: machine.name)
def test_machines_without_warpgroups_get_other_kernels(precision, machine):
    found = chosen(precision, (512, 14, 14), 512, 3, machine, padding=1)
    assert "warpgroup" not in found.name
    for name in MANY:
        layer = Conv2d(np.ones((64, 32, 3, 3)), padding=1)
        reason = kernel_named("conv2d", name, "cuda").why_not(machine, layer, (32, 28, 28))
        assert reason == (
            f"the GPU has compute capability {machine.capability / 10:.1f}; the kernel is written for 9.0"
        )


@automatic_kernels
def test_a_machine_that_does_everything_twice_as_fast_takes_half_the_time(kernel):
    faster = replace(H200, clock=2 * H200.clock, copy_bandwidth=2 * H200.copy_bandwidth)
    assert seconds(kernel, faster) == pytest.approx(seconds(kernel, H200) / 2)


def test_rates_scale_with_the_machine():
    assert estimates.bytes_a_second(H200, 3e12) == estimates.bytes_a_clock(H200, 3e12) == 3e12
    assert estimates.multiply_adds_a_second(H200, "tf32", 5e14) == 5e14
    halved = replace(H200, copy_bandwidth=H200.copy_bandwidth / 2, multiprocessors=66)
    assert estimates.bytes_a_second(halved, 3e12) == pytest.approx(1.5e12)
    assert estimates.bytes_a_clock(halved, 18.0) == pytest.approx(18.0)
    assert estimates.multiply_adds_a_second(halved, "float32", 2.5e12) == pytest.approx(1.25e12)
    assert estimates.layout_seconds(halved, 3.2e12) == pytest.approx(2)
