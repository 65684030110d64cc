"""Priors of the CUDA kernels for convolutions: against what an H200 took, and on other machines."""

from dataclasses import replace

import numpy as np
import pytest

from sparsenn.backends import automatic, kernel_named, permitted_kernels
from sparsenn.backends.machine import A100, H200, MACHINES, RTX_4090
from sparsenn.engine.choosing import CLOSE
from sparsenn.layers import Conv2d

FEW = {"conv_tensor_float32", "conv_tensor_tf32", "conv_tensor_half"}
MANY = {"conv_warpgroup_float32", "conv_warpgroup_tf32", "conv_warpgroup_half"}

machines = pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
precisions = pytest.mark.parametrize("precision", ["float32", "tf32", "float16"])
automatic_kernels = pytest.mark.parametrize("kernel", automatic("conv2d", "cuda"), ids=lambda kernel: kernel.name)


def seconds(kernel, machine):
    return kernel.seconds(machine, Conv2d(np.ones((8, 32, 3, 3)), padding=1), (32, 28, 28))


@automatic_kernels
@machines
def test_every_kernel_of_auto_gives_an_estimate(kernel, machine):
    assert 0 < seconds(kernel, machine) < 1


@precisions
def test_few_channels_and_many_have_kernels_of_their_own(precision):
    for image, filters, size, names in (
        ((1, 86, 86), 4, 7, FEW),
        ((4, 40, 40), 16, 7, FEW),
        ((512, 14, 14), 512, 3, MANY),
    ):
        layer = Conv2d(np.ones((filters, image[0], size, size)), padding=size // 3 % 2)
        able = [entry for entry in permitted(precision) if entry.why_not(H200, layer, image) is None]
        assert min(able, key=lambda entry: entry.seconds(H200, layer, image)).name in names


@precisions
@pytest.mark.parametrize(("image", "filters"), [((1, 86, 86), 4), ((4, 40, 40), 16)])
def test_the_library_is_not_loaded_for_layers_of_few_channels(precision, image, filters):
    """An H200 took 4 to 200 times as long by cuDNN; loading it takes seconds."""
    layer = Conv2d(np.ones((filters, image[0], 7, 7)))
    known = {kernel.name: kernel.seconds(H200, layer, image) for kernel in automatic("conv2d", "cuda")}
    ours = known[f"conv_tensor_{precision.replace('float16', 'half')}"]
    assert known[f"conv_cudnn_{precision}"] > CLOSE * ours


def permitted(precision):
    return permitted_kernels("conv2d", "cuda", "auto", precision)


@precisions
@machines
def test_any_convolution_finds_a_kernel_that_keeps_the_precision(precision, machine):
    for steps in ({"groups": 8}, {"stride": 5, "dilation": 3}, {"groups": 32, "stride": 2, "padding": 1}):
        layer = Conv2d(np.ones((32, 32 // steps.get("groups", 1), 3, 3)), **steps)
        assert any(entry.why_not(machine, layer, (32, 28, 28)) is None for entry in permitted(precision))


@pytest.mark.parametrize("machine", [A100, RTX_4090], ids=lambda machine: machine.name)
def test_machines_without_warpgroups_are_refused(machine):
    for name in MANY:
        layer = Conv2d(np.ones((64, 32, 3, 3)), padding=1)
        reason = kernel_named("conv2d", name, "cuda").why_not(machine, layer, (32, 28, 28))
        assert reason == (
            f"the GPU has compute capability {machine.capability / 10:.1f}; the kernel is written for 9.0"
        )


@automatic_kernels
def test_a_machine_that_does_everything_twice_as_fast_takes_about_half_the_time(kernel):
    faster = replace(H200, clock=2 * H200.clock, copy_bandwidth=2 * H200.copy_bandwidth)
    assert 0.5 < seconds(kernel, faster) / seconds(kernel, H200) < 0.7  # launches take as long


MEASURED = {
    "conv_unrolled": {"wide": 20.8e-3, "deep": 10.4e-3, "pointwise": 5.1e-3},
    "conv_register_tiled": {"wide": 2.59e-3, "deep": 1.51e-3, "pointwise": 0.211e-3},
    "conv_implicit_float32": {"wide": 2.63e-3, "deep": 1.18e-3, "pointwise": 0.300e-3},
    "conv_warpgroup_float32": {"wide": 1.24e-3, "deep": 0.618e-3, "pointwise": 0.287e-3},
    "conv_warpgroup_tf32": {"wide": 0.512e-3, "deep": 0.225e-3, "pointwise": 0.185e-3},
    "conv_warpgroup_half": {"wide": 0.286e-3, "deep": 0.124e-3, "pointwise": 0.102e-3},
}
"""Seconds that an H200 took for 64 images, half precision's of float16."""

LAYERS = {
    "wide": ((64, 112, 112), Conv2d(np.ones((128, 64, 3, 3)), padding=1)),
    "deep": ((512, 14, 14), Conv2d(np.ones((512, 512, 3, 3)), padding=1)),
    "pointwise": ((256, 56, 56), Conv2d(np.ones((64, 256, 1, 1)))),
}


@pytest.mark.parametrize("name", MEASURED)
def test_priors_are_close_to_what_was_measured(name):
    kernel = kernel_named("conv2d", name, "cuda")
    for layer, taken in MEASURED[name].items():
        image, convolution = LAYERS[layer]
        assert 0.4 < 64 * kernel.seconds(H200, convolution, image) / taken < 2.7


def test_few_filters_and_channels_count_as_many_as_are_multiplied():
    kernel = kernel_named("conv2d", "conv_warpgroup_float32", "cuda")
    few, many = (Conv2d(np.ones((filters, channels, 7, 7))) for filters, channels in ((4, 1), (64, 8)))
    assert kernel.seconds(H200, few, (1, 86, 86)) > 0.9 * kernel.seconds(H200, many, (8, 86, 86))
