"""Plans for GPUs that are not here: what they choose there, and that they are printed, not run."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest

from sparsenn import execute, infer, plan, radixnet
from sparsenn.backends import MACHINES, backend_elsewhere, kernel_named
from sparsenn.backends.cuda.conv import implicit_plan, register_tiled, tensor_image, tensor_plan, warpgroup_plan
from sparsenn.backends.cuda.conv.estimates import IMAGES
from sparsenn.backends.cuda.conv.kernel import geometry_of
from sparsenn.backends.cuda.dense import fused, image
from sparsenn.backends.cuda.tensor_tiles import FLOAT32 as FLOAT32_TILES
from sparsenn.backends.machine import A100, H200, RTX_4090, Machine
from sparsenn.engine.kernels import OPERATION
from sparsenn.errors import DeviceError, UsageError
from sparsenn.formats import CSR, from_dense
from sparsenn.layers import Conv2d, Flatten, Linear, MaxPool2d
from sparsenn.network import Network

PRECISIONS = ("float32", "tf32", "fp16")


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

FUSED = {"float32": "fused_fma", "tf32": "tensor_tf32", "fp16": "tensor_half"}
TENSOR = {"float32": "tensor_float32", "tf32": "tensor_tf32", "fp16": "tensor_half"}
ON_AN_H200 = {
    "radixnet 1024": {"float32": ["resident"] * 12},
    "radixnet 16384": {"float32": ["resident"] * 4},
    "dense 72-64-64-4": {precision: [name] * 3 for precision, name in TENSOR.items()},
    "dense 64, 20 layers": {precision: [name] * 20 for precision, name in FUSED.items()},
    "dense 256": {precision: [name] * 3 for precision, name in FUSED.items()},
    "dense 784-512-512-10": {precision: ["cublas"] * 3 for precision in PRECISIONS},
    "lenet": {precision: [name] * 2 for precision, name in TENSOR.items()},
    "vgg": {
        "float32": ["register_tiled", "warpgroup_float32", "warpgroup_float32"],
        "tf32": ["tensor_tf32", "warpgroup_tf32", "warpgroup_tf32"],
        "fp16": ["tensor_half", "warpgroup_rows_half", "warpgroup_half"],
    },
}
"""The kernels of layers with weights, as they were chosen when estimates knew no other machine."""

CASES = [(name, precision) for name, found in ON_AN_H200.items() for precision in found]


@dataclass(frozen=True)
class Choices:
    """A plan's kernels of layers with weights, by layer, and its text."""

    names: list[str]
    text: str


@cache
def chosen(name: str, precision: str, machine: Machine) -> Choices:
    network = NETWORKS[name]
    made = plan(network, rows_of(network), machine=machine, precision=precision, merging=False)
    names = [found.kernel.name for number, found in made.chosen.items() if network[number].edges]
    return Choices(names, str(made))


@pytest.mark.parametrize(("name", "precision"), CASES)
def test_choices_for_an_h200_are_those_made_on_one(name: str, precision: str) -> None:
    assert chosen(name, precision, H200).names == ON_AN_H200[name][precision]


@pytest.mark.parametrize("machine", [A100, RTX_4090], ids=lambda machine: machine.name)
@pytest.mark.parametrize(("name", "precision"), CASES)
def test_other_gpus_get_kernels_that_they_can_run(name: str, precision: str, machine: Machine) -> None:
    found = chosen(name, precision, machine)
    print(found.text)
    operation = {"radixnet": "spmspm", "dense": "mlp"}.get(name.split()[0], "conv2d")
    kernels = [kernel_named(operation, kernel, "cuda") for kernel in set(found.names)]
    assert not [kernel.name for kernel in kernels if "9.0 only" in kernel.needs[0]]
    assert f"on {machine.name} (not here)" in found.text
    assert {kernel.precision for kernel in kernels} <= {precision, "float32"}


def test_plans_are_printed_for_each_machine(capsys: pytest.CaptureFixture[str]) -> None:
    for machine in MACHINES.values():
        print(plan(NETWORKS["lenet"], rows_of(NETWORKS["lenet"]), machine=machine))
    told = capsys.readouterr().out.splitlines()
    assert [machine.name in line for machine, line in zip(MACHINES.values(), told, strict=True)] == [True] * 3
    assert all("multiply-adds an input on" in line and "Convolutions (1" in line for line in told)


def test_machines_differ_in_what_they_get() -> None:
    for name, precision in (("vgg", "float32"), ("vgg", "fp16")):
        names = {machine.name: tuple(chosen(name, precision, machine).names) for machine in MACHINES.values()}
        assert len(set(names.values())) == 3, names


def test_rows_that_do_not_fit_into_shared_memory_are_not_kept_there() -> None:
    """A row of 16,384 inputs and one of as many outputs take more than an RTX 4090's 99 KiB, and less than 163 KiB."""
    kernels = {}
    for name, machine in MACHINES.items():
        made = plan(NETWORKS["radixnet 16384"], rows_of(NETWORKS["radixnet 16384"]), machine=machine, merging=False)
        kernels[name] = [kernel.name for kernel in made.kernels]
    assert kernels == {"h200": ["resident", "chunks"], "a100": ["resident", "chunks"], "rtx-4090": ["chunks"]}


@pytest.mark.parametrize("machine", MACHINES.values(), ids=lambda machine: machine.name)
def test_what_is_planned_finds_room_in_shared_memory(machine: Machine) -> None:
    found = []
    for name in ("lenet", "vgg"):
        network = NETWORKS[name]
        for layer, (channels, *size) in zip(network, network.shapes, strict=False):
            if isinstance(layer, Conv2d):
                geometry = geometry_of(layer, (channels, *size))
                tiling = register_tiled.tiling_for(geometry, IMAGES, machine)
                found.append(None if tiling is None else register_tiled.shared_bytes(geometry, tiling))
                plans = [implicit_plan.plan(FLOAT32_TILES, geometry, IMAGES, False, machine)]
                if geometry.channels < 8:
                    plans.append(tensor_plan.plan(tensor_image.FLOAT32, geometry, IMAGES, machine))
                if machine.capability == 90:
                    plans.append(warpgroup_plan.plan(FLOAT32_TILES, geometry, IMAGES, machine))
                found.extend(made.shared_bytes for made in plans if made is not None)
    for widths in ((72, 64, 64, 4), (256, 256, 256)):
        found += [fused.plan(kind, widths, 10**5, machine).shared_bytes for kind in (image.TF32, image.HALF)]
        rows, _, shared = fused.rows_of_block(widths, 10**5, machine)
        assert rows > 0
        found.append(shared)
    assert len(found) > 15
    assert 32 << 10 < max(size for size in found if size is not None) <= machine.block_bytes


def test_a_machine_is_given_by_name_or_as_it_is() -> None:
    network = NETWORKS["dense 256"]
    by_name, by_itself = (plan(network, rows_of(network), machine=machine) for machine in ("a100", A100))
    assert str(by_name) == str(by_itself)
    assert "on NVIDIA A100-SXM4-80GB (not here), in one batch" in str(by_name)
    assert by_name.memory_limit == A100.memory_bytes // 2
    assert by_name.weight_memory == A100.memory_bytes // 2
    assert json.loads(json.dumps(by_name.to_dict()))["device"] == "NVIDIA A100-SXM4-80GB (not here)"
    with pytest.raises(UsageError, match=r"unknown machine 'v100'.*known: a100, h200, rtx-4090"):
        plan(network, rows_of(network), machine="v100")


def test_less_memory_means_more_parts() -> None:
    network = NETWORKS["dense 784-512-512-10"]
    weights = sum(layer.weight_bytes for layer in network)
    small = replace(RTX_4090, memory_bytes=weights)
    made = plan(network, rows_of(network), machine=small)
    assert made.streams
    assert len(made.segments) > 1
    assert not plan(network, rows_of(network), machine=RTX_4090).streams


def test_a_named_kernel_is_obeyed_or_refused_for_the_machine() -> None:
    network = NETWORKS["vgg"]
    made = plan(network, rows_of(network, 2), machine="h200", kernel="warpgroup_float32")
    assert {found.kernel.name for found in made.convolutions.values()} == {"warpgroup_float32"}
    with pytest.raises(UsageError, match=r"the kernel 'warpgroup_float32' cannot run layer 1: .*9.0"):
        plan(network, rows_of(network, 2), machine="a100", kernel="warpgroup_float32")


@pytest.mark.parametrize("device", ["cpu", "cuda:0", "reference", "gpu"])
def test_a_device_that_is_another_is_refused(device: str) -> None:
    network = NETWORKS["dense 256"]
    with pytest.raises(UsageError, match=f"device {device} is not NVIDIA H200"):
        plan(network, rows_of(network), device=device, machine="h200")


def test_only_gpus_are_planned_for_elsewhere() -> None:
    network = NETWORKS["dense 256"]
    with pytest.raises(UsageError, match="some processor is no GPU"):
        plan(network, rows_of(network), machine=Machine("some processor", "cpu", 8))


@pytest.mark.parametrize("name", ["radixnet 1024", "dense 256", "lenet"])
def test_a_plan_for_another_machine_is_not_run(name: str) -> None:
    network = NETWORKS[name]
    inputs = rows_of(network, 2)
    message = "NVIDIA H200 is not here: a plan for another machine can be printed, not run"
    with pytest.raises(DeviceError, match=message):
        execute(plan(network, inputs, device="cuda", machine="h200"), inputs)
    with pytest.raises(DeviceError, match=message):
        infer(network, inputs, machine="h200")


def test_an_absent_gpu_computes_nothing() -> None:
    backend = backend_elsewhere("cuda", H200)
    network, rows = NETWORKS["dense 256"], np.ones((2, 256), np.float32)
    asked = {
        "prepare": ((), ()),
        "prepare_dense": (network.dense_layers(),),
        "prepare_images": ((Flatten(),), ((256,), (256,))),
        "run_image_layer": (Flatten(), (256,), rows),
        "place": (rows,),
        "fetch": (rows,),
        "take_rows": (rows, np.arange(1)),
        "equal_rows": (rows,),
        "as_dense": (rows,),
        "take_in": (rows, False),
        "count_nonzeros": (rows,),
        "largest_number": (rows,),
    }
    for name, arguments in asked.items():
        with pytest.raises(DeviceError, match="not here"):
            getattr(backend, name)(*arguments)
    backend.release()
    assert backend.compile_seconds() == 0
    assert backend.machine is H200


def test_cupy_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    for name in ("radixnet 1024", "dense 72-64-64-4", "lenet"):
        assert plan(NETWORKS[name], rows_of(NETWORKS[name]), machine="rtx-4090").device.endswith("(not here)")


def test_the_network_that_a_plan_is_for_has_its_kernels_in_the_order_of_preference() -> None:
    made = plan(NETWORKS["radixnet 1024"], rows_of(NETWORKS["radixnet 1024"]), machine="h200", merging=False)
    assert [kernel.name for kernel in made.kernels] == ["resident", "chunks"]
    assert {found.kernel.operation for found in made.chosen.values()} == {OPERATION}
