"""Plans for GPUs that are not here: what they choose there, and that they are printed, not run."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise

import numpy as np
import pytest

from sparsenn import Session, infer, plan, radixnet
from sparsenn.backends import MACHINES
from sparsenn.backends.cuda.sparse.resident.stages import fits_in_shared
from sparsenn.backends.machine import A100, H200, RTX_4090, Machine
from sparsenn.engine.choosing import few_rows
from sparsenn.errors import DeviceError, UsageError
from sparsenn.formats import CSR, from_dense
from sparsenn.layers import Conv2d, Linear, MaxPool2d
from sparsenn.network import Network

PRECISIONS = ("float32", "tf32", "float16")


def dense(*widths: int) -> Network:
    return Network(tuple(Linear(np.full(pair, 0.01), 0.1) for pair in pairwise(widths)))


def convolving(image: tuple[int, int, int], *blocks: tuple[int, int, bool]) -> Network:
    """Convolutions of so many filters of a size, each with a pool after it or without."""
    layers: list[Conv2d | MaxPool2d] = []
    channels = image[0]
    for filters, size, pooled in blocks:
        layers.append(Conv2d(np.full((filters, channels, size, size), 0.01), 0.1, padding=size // 2))
        layers.extend([MaxPool2d(2)] if pooled else [])
        channels = filters
    return Network(tuple(layers), image)


@lru_cache(maxsize=2)
def rows_of(network: Network, count: int = 64) -> CSR:
    """Rows of inputs, a tenth of them one."""
    random = np.random.default_rng(1)
    return from_dense((random.random((count, network.inputs)) < 0.1).astype(np.float32))


NETWORKS = {
    "radixnet 1024": radixnet(1024, 12),
    "radixnet 16384": radixnet(16384, 4),
    "dense 72-64-64-4": dense(72, 64, 64, 4),
    "dense 64, 20 layers": dense(*[64] * 21),
    "dense 256": dense(256, 256, 256, 256),
    "dense 784-512-512-10": dense(784, 512, 512, 10),
    "lenet": convolving((1, 86, 86), (4, 7, True), (16, 7, True)),
    "vgg": convolving((3, 112, 112), (64, 3, False), (64, 3, True), (512, 3, False)),
}

CASES = [
    (name, precision) for name in NETWORKS for precision in (PRECISIONS if "radixnet" not in name else PRECISIONS[:1])
]


@pytest.mark.parametrize("machine", MACHINES.values(), ids=lambda machine: machine.name)
@pytest.mark.parametrize(("name", "precision"), CASES)
@pytest.mark.parametrize("count", [1, 64, 4096])
def test_gpus_get_kernels_that_they_can_run(count: int, name: str, precision: str, machine: Machine) -> None:
    network = NETWORKS[name]
    made = plan(network, rows_of(network, count), machine=machine, precision=precision, merging=False)
    kernels = [kernel for kernel, layer in zip(made.kernels, network, strict=True) if layer.edges]
    assert f"on {machine.name} (not here)" in str(made)
    assert all(kernel.device == "cuda" and kernel.auto for kernel in kernels)
    assert {kernel.precision for kernel in kernels} <= {precision, "float32"}
    if machine.capability != H200.capability:
        assert not [kernel.name for kernel in kernels if "9.0 only" in kernel.needs[0]]
    for step in made.steps:
        layers = network.layers[step.first : step.last]
        if step.kernel.operation == "images":
            continue
        assert step.seconds is not None, step.kernel.name
        assert 0 < step.seconds < 10
        if step.kernel.operation == "conv2d":
            problem: tuple[object, ...] = (layers[0], network.shapes[step.first])
        elif step.kernel.operation == "spmspm":
            problem = (Network(layers), few_rows(layers[0].inputs, made.rows.form == "iso"))
        elif all(isinstance(layer, Linear) for layer in layers):
            problem = (layers,)
        else:
            continue
        assert step.kernel.why_not(machine, *problem) is None


def test_machines_differ_in_what_they_get() -> None:
    network = NETWORKS["vgg"]
    for precision in ("float32", "float16"):
        names = {}
        for machine in MACHINES.values():
            made = plan(network, rows_of(network), machine=machine, precision=precision, merging=False)
            kernels = zip(made.kernels, network, strict=True)
            names[machine.name] = [kernel.name for kernel, layer in kernels if layer.edges]
        assert names.pop("NVIDIA H200") not in names.values()


def test_rows_that_do_not_fit_into_shared_memory_can_run_resident_too() -> None:
    """A row of 16,384 inputs and one of as many outputs take more than an RTX 4090's 99 KiB, and less than 163 KiB."""
    fitting = {name: fits_in_shared(16384, machine.block_bytes) for name, machine in MACHINES.items()}
    assert fitting == {"h200": True, "a100": True, "rtx-4090": False}
    network = NETWORKS["radixnet 16384"]
    for machine in MACHINES.values():
        made = plan(network, rows_of(network), machine=machine, merging=False, kernel="resident")
        assert [step.kernel.name for step in made.steps] == ["resident"]


def test_a_machine_is_given_by_name_or_as_it_is() -> None:
    network = NETWORKS["dense 256"]
    by_name, by_itself = (plan(network, rows_of(network), machine=machine) for machine in ("a100", A100))
    assert str(by_name) == str(by_itself)
    assert "on NVIDIA A100-SXM4-80GB (not here), in one batch" in str(by_name)
    assert by_name.compiled.memory_limit == A100.memory_bytes // 2
    assert by_name.compiled.weight_memory == A100.memory_bytes // 2
    assert json.loads(json.dumps(by_name.to_dict()))["device"] == "NVIDIA A100-SXM4-80GB (not here)"
    with pytest.raises(UsageError, match=r"unknown machine 'v100'.*known: a100, h200, rtx-4090"):
        plan(network, rows_of(network), machine="v100")


def test_less_memory_means_more_parts() -> None:
    network = NETWORKS["dense 784-512-512-10"]
    weights = sum(layer.weight_bytes for layer in network)
    small = replace(RTX_4090, memory_bytes=weights)
    made = plan(network, rows_of(network), machine=small)
    assert made.streams
    assert len(made.steps) > 1
    assert not plan(network, rows_of(network), machine=RTX_4090).streams


def test_a_named_kernel_is_obeyed_or_refused_for_the_machine() -> None:
    network = NETWORKS["vgg"]
    made = plan(network, rows_of(network, 2), machine="h200", kernel="conv_warpgroup_float32")
    assert {kernel.name for kernel in made.kernels if kernel.operation == "conv2d"} == {"conv_warpgroup_float32"}
    with pytest.raises(UsageError, match=r"the kernel 'conv_warpgroup_float32' cannot run layer 1: .*9.0"):
        plan(network, rows_of(network, 2), machine="a100", kernel="conv_warpgroup_float32")


def test_only_gpus_are_planned_for_elsewhere() -> None:
    network = NETWORKS["dense 256"]
    for device in ("cpu", "cuda:0", "reference", "gpu"):
        with pytest.raises(UsageError, match=f"device {device} is not NVIDIA H200"):
            plan(network, rows_of(network), device=device, machine="h200")
    with pytest.raises(UsageError, match="some processor is not a GPU"):
        plan(network, rows_of(network), machine=Machine("some processor", "cpu", 8))


@pytest.mark.parametrize("name", ["radixnet 1024", "dense 256", "lenet"])
def test_a_plan_for_another_machine_is_not_run(name: str) -> None:
    network = NETWORKS[name]
    inputs = rows_of(network, 2)
    message = "NVIDIA H200 is not here: a plan for another machine can be printed, not run"
    with pytest.raises(DeviceError, match=message):
        Session.of_plan(plan(network, inputs, device="cuda", machine="h200")).run(inputs)
    with pytest.raises(DeviceError, match=message):
        Session(network, machine="h200")(inputs)
    with pytest.raises(DeviceError, match=message):
        infer(network, inputs, machine="h200")


def test_cupy_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    for name in ("radixnet 1024", "dense 72-64-64-4", "lenet"):
        assert plan(NETWORKS[name], rows_of(NETWORKS[name]), machine="rtx-4090").device.endswith("(not here)")


def test_rows_of_float16_go_to_a_kernel_that_takes_them(rng: np.random.Generator) -> None:
    def kernels(outputs: int, rows: int, kind: type[np.generic]) -> dict[str, str]:
        weights = rng.standard_normal((inputs, outputs)) * (rng.random((inputs, outputs)) < 0.1)
        network = Network.from_scipy([from_dense(weights.astype(np.float32)).to_scipy()])
        given = np.zeros((rows, inputs), kind)
        made = {name: plan(network, given, machine=H200, precision=name) for name in PRECISIONS}
        return {name: each.steps[0].kernel.name for name, each in made.items()}

    inputs = 200
    assert kernels(4096, 7, np.float16)["float16"] == "few_rows_float16"
    inputs = 1024
    assert kernels(1024, 60_000, np.float16)["float16"] in ("cublas_float16", "two_of_four_float16")


@pytest.mark.parametrize("kind", [np.float32, np.float16])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_only_a_plan_for_rows_of_float16_keeps_them(precision: str, kind: type[np.generic]) -> None:
    made = plan(dense(64, 64, 10), np.zeros((100, 64), kind), machine=H200, precision=precision)
    assert made.keeps_half == (precision == "float16" and kind is np.float16)
