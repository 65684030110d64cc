"""Which layers run in one step: stacks of layers of images, and a convolution with the sum that follows it."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_registry import add

from sparsenn import Add, Conv2d, Flatten, Identity, Linear, MaxPool2d, Network, Node, ReLU, Session
from sparsenn.backends import ConvolutionKernel, kernel_named
from sparsenn.backends.cuda.conv import channels_last
from sparsenn.backends.machine import H200
from sparsenn.engine import choosing
from sparsenn.engine.plan import plan_rows
from sparsenn.layers import Activation

CHANNELS, SIDE = 16, 8


def convolution(activation: Activation) -> Conv2d:
    """Of which one weight in ten is left."""
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(CHANNELS, CHANNELS, 3, 3)) * (rng.random((CHANNELS, CHANNELS, 3, 3)) < 0.1)
    return Conv2d(weights, np.ones(CHANNELS), activation, padding=1)


def residual(
    *, blocks: int = 1, hidden: Activation | None = None, twice: bool = False, read_again: bool = False
) -> Network:
    """Blocks of two convolutions and a sum with what the block reads, then a pool and a dense layer."""
    nodes = [Node(convolution(ReLU()), (0,))]
    for _ in range(blocks):
        first = len(nodes)
        nodes.append(Node(convolution(ReLU()), (first,)))
        nodes.append(Node(convolution(hidden or Identity()), (first + 1,)))
        nodes.append(Node(Add(ReLU()), (first + 2, first + 2) if twice else (first, first + 2)))
    if read_again:
        nodes.append(Node(Add(), (len(nodes) - 1, len(nodes))))
    nodes += [Node(MaxPool2d(2), (len(nodes),)), Node(Flatten(), (len(nodes) + 1,))]
    width = CHANNELS * SIDE * SIDE // 4
    nodes.append(Node(Linear(np.full((width, 3), 0.1)), (len(nodes),)))
    return Network(tuple(nodes), (CHANNELS, SIDE, SIDE))


def ranges(network: Network, **options: str) -> list[tuple[int, int]]:
    return [(step.first, step.last) for step in plan_rows(network, 64, machine=H200, **options).steps]


def test_a_sum_runs_with_the_convolution_before_it() -> None:
    pairs = ranges(residual(blocks=2), kernel="conv_sparse_direct")
    assert pairs == [(0, 1), (1, 2), (2, 4), (4, 5), (5, 7), (7, 8), (8, 9), (9, 10)]


@pytest.mark.parametrize(
    ("network", "kernel"),
    [
        *(
            (residual(**how), "conv_sparse_direct")
            for how in ({"hidden": ReLU()}, {"twice": True}, {"read_again": True})
        ),
        (residual(), "conv_unrolled"),  # takes no sum along
    ],
)
def test_a_sum_that_is_not_all_that_follows_runs_alone(network: Network, kernel: str) -> None:
    assert (2, 3) in ranges(network, kernel=kernel)


@pytest.mark.parametrize("precision", ["tf32", "float16"])
def test_many_convolutions_run_as_a_stack(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels_last, "why_no_library", lambda: None)
    monkeypatch.setattr(choosing, "LEAST_STACKED", 5)
    (stack, _) = plan_rows(residual(blocks=2), 64, machine=H200, precision=precision).steps
    assert (stack.first, stack.last, stack.kernel.name) == (0, 9, f"conv_cudnn_{precision}")
    for name, least in (("LEAST_STACKED_DENSITY", 0.2), ("LEAST_STACKED", 6)):
        with monkeypatch.context() as patch:
            patch.setattr(choosing, name, least)
            steps = plan_rows(residual(blocks=2), 64, machine=H200, precision=precision).steps
        assert len(steps) > 2


def test_a_convolution_and_its_sum_give_what_both_give_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    direct = kernel_named("conv2d", "conv_direct", "cpu").launch
    terms = []

    def launch(layer: Conv2d | tuple[Conv2d, Add], images: np.ndarray, other: np.ndarray | None = None) -> np.ndarray:
        if isinstance(layer, Conv2d):
            assert other is None
            return direct(layer, images)
        assert other is not None
        terms.append(other.shape)
        convolved, total = layer
        return total.activation(direct(convolved, images) + other)

    summing = ConvolutionKernel(
        name="conv_summing",
        device="cpu",
        summary="ends with a sum",
        launch=launch,
        with_sum=lambda layer, total: (layer, total),
        fuses=lambda layer, shapes: isinstance(layer, Add),
    )
    add(monkeypatch, summing)
    network = residual(blocks=2)
    rows = np.random.default_rng(1).normal(size=(3, network.inputs)).astype(np.float32)
    expected = Session(network, device="reference")(rows)
    session = Session(network, device="cpu", kernel="conv_summing")
    for found in (session(rows), session.run(rows).outputs.to_scipy().toarray()):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
    assert terms == [(3, CHANNELS, SIDE, SIDE)] * 4
    assert [step.last - step.first for step in session.plan(rows).steps][:3] == [1, 1, 2]
