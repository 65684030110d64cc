"""Kernels that say so give a row the same bits whatever is computed beside it, and `reproducible` takes no others."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import activations, biases, linear_layers, seeds
from strategies import layers as sparse_layers

from sparsenn import AvgPool2d, Conv2d, Flatten, Linear, MaxPool2d, Network, ReLU, Session, Softmax
from sparsenn.backends import kernels
from sparsenn.backends.registry import reproducible_kernels
from sparsenn.errors import UsageError

MARKS = {"cpu": (), "cuda": (pytest.mark.gpu,)}
LARGE = {"cpu": 300, "cuda": 256}
"""The widest layers that the kernels of a device take."""


def declared(*operations: str) -> list[Any]:
    return [
        pytest.param(kernel, marks=marks, id=f"{device}-{kernel.name}")
        for device, marks in MARKS.items()
        for operation in operations
        for kernel in reproducible_kernels(operation, device)
    ]


@st.composite
def stacks(draw: st.DrawFn, kind: Any, widest: int) -> Network:
    widths = draw(st.lists(st.integers(1, widest), min_size=2, max_size=4))
    return Network(tuple(draw(kind(*pair)) for pair in itertools.pairwise(widths)))


@st.composite
def convolutions(draw: st.DrawFn, kernel: Any) -> Network:
    """One convolution of groups that a kernel takes: any windows, strides, padding and dilation."""
    groups, each, filters = draw(st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 7)))
    if "one group" in kernel.needs:
        groups = 1
    if "one channel in a group" in kernel.needs:
        groups, each, filters = groups + 1, 1, 1
    window, dilation = draw(st.tuples(st.integers(1, 3), st.integers(1, 3))), draw(st.integers(1, 2))
    least = dilation * (max(window) - 1) + 1
    rng = np.random.default_rng(draw(seeds))
    layer = Conv2d(
        rng.standard_normal((groups * filters, each, *window)).astype(np.float32),
        draw(biases(groups * filters)),
        draw(activations()),
        draw(st.integers(1, 2)),
        draw(st.integers(0, 2)),
        dilation,
        groups,
    )
    return Network((layer,), image=(groups * each, draw(st.integers(least, 9)), draw(st.integers(least, 9))))


def check_rows(network: Network, count: int, seed: int, **options: Any) -> None:
    """Compare the outputs of rows that come together with those of rows that come alone, in parts, and mixed."""
    rng = np.random.default_rng(seed)
    rows = (rng.standard_normal((count, network.inputs)) * 2.0 ** rng.integers(-9, 9, (count, 1))).astype(np.float32)
    chosen = rng.integers(0, count, count + 5)
    limit = 16 * network.widest * 4 + 256
    with Session(network, **options) as session:
        whole = session(rows)
        assert np.array_equal(session(rows[:1]), whole[:1])
        assert np.array_equal(session(rows[count // 3 :]), whole[count // 3 :])
        assert np.array_equal(session(rows[chosen]), whole[chosen])
    for other in ({"batch_size": 1 + count // 5}, {"memory_limit": limit}, {"weight_memory": 1}, {"compaction": False}):
        with Session(network, **options, **other) as session:
            assert np.array_equal(session(rows), whole), other


@pytest.mark.parametrize("kernel", declared("spmspm", "mlp"))
@given(data=st.data(), count=st.integers(1, 70), seed=seeds)
def test_a_kernel_gives_a_row_the_same_bits(kernel: Any, data: st.DataObject, count: int, seed: int) -> None:
    kind = linear_layers if kernel.operation == "mlp" else sparse_layers
    network = data.draw(stacks(kind, LARGE[kernel.device]))
    check_rows(network, count, seed, device=kernel.device, kernel=kernel.name)


@pytest.mark.parametrize("kernel", declared("conv2d"))
@given(data=st.data(), count=st.integers(1, 40), seed=seeds)
def test_a_kernel_gives_an_image_the_same_bits(kernel: Any, data: st.DataObject, count: int, seed: int) -> None:
    check_rows(data.draw(convolutions(kernel)), count, seed, device=kernel.device, kernel=kernel.name)


@pytest.mark.parametrize("device", [pytest.param(device, marks=marks) for device, marks in MARKS.items()])
def test_large_products_are_cut_in_no_other_way(device: str, rng: np.random.Generator) -> None:
    widths = (700, LARGE[device], 130, 7) if device == "cpu" else (250, LARGE[device], 130, 7)
    layers = (Linear(rng.standard_normal(pair) / 16, 0.1, ReLU()) for pair in itertools.pairwise(widths))
    check_rows(Network(tuple(layers)), 3001, 5, device=device, reproducible=True)
    image = (3, 40, 33)
    filters = [rng.standard_normal(shape) for shape in ((6, 3, 5, 5), (6, 2, 3, 3))]
    images = (Conv2d(filters[0], 0.1), MaxPool2d(2), Conv2d(filters[1], groups=3), AvgPool2d(3), Flatten(), Softmax())
    check_rows(Network(images, image=image), 201, 6, device=device, reproducible=True)


def test_of_layers_that_libraries_run_one_kernel_of_a_device_is_reproducible() -> None:
    """So no estimate, which depends on how many rows there are, has a say; kernels named together give equal bits."""
    expected = {
        ("mlp", "cpu"): ["register_tiled"],
        ("mlp", "cuda"): ["fused_fma"],
        ("conv2d", "cpu"): ["conv_direct"],
        ("conv2d", "cuda"): ["conv_depthwise", "conv_sparse_direct", "conv_unrolled"],
    }
    for (operation, device), names in expected.items():
        found = reproducible_kernels(operation, device)
        assert sorted(kernel.name for kernel in found) == names
        assert {kernel.precision for kernel in found} == {"float32"}
    assert not any(kernel.reproducible for kernel in kernels(device="reference"))


def test_the_plan_says_so(rng: np.random.Generator) -> None:
    network = Network((Linear(rng.standard_normal((5, 4))),))
    for wanted in (False, True):
        plan = Session(network, device="cpu", reproducible=wanted).plan(np.ones((3, 5)))
        assert plan.kernel.name == "register_tiled"
        assert plan.to_dict()["reproducible"] is wanted
        assert ("Reproducible" in str(plan)) is wanted


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "cpu", "kernel": "blas"}, "'blas' is not reproducible; those that are: register_tiled"),
        ({"device": "cpu", "precision": "tf32"}, "not multiplied, if reproducibly, in tf32 on cpu; known: float32"),
        ({"device": "reference"}, "on reference; known: none"),
        ({"machine": "a100", "device": "cuda"}, "up to 256; no other kernel is reproducible: leave out reproducible"),
        ({"reproducible": "yes"}, "reproducible is 'yes'; give True or False"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], message: str, rng: np.random.Generator) -> None:
    network = Network((Linear(rng.standard_normal((400, 300))),))
    with pytest.raises(UsageError, match=message):
        Session(network, **{"reproducible": True, **options}).plan(np.ones((3, 400)))
