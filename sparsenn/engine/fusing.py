"""Fusing: steps of layers of images become one where a kernel of convolutions runs them together, branches included."""

from __future__ import annotations

from collections.abc import Sequence

from sparsenn.backends import ConvolutionKernel
from sparsenn.backends.kernel_records import IMAGE_OPERATION
from sparsenn.engine.steps import Alternative, Step
from sparsenn.layers import Add, Conv2d, Identity, ImageLayer
from sparsenn.network import Network

__all__ = ["fused", "with_stacks"]

LEAST_STACKED = 8
"""Convolutions that a kernel runs as one stack whatever each would take alone: their values stay in its layout."""

LEAST_STACKED_DENSITY = 1 / 32
"""Share of their weights that is not zero, below which kernels that leave zeros out may be faster."""


def fused(network: Network, steps: Sequence[Step]) -> tuple[Step, ...]:
    """Make one step, from each on, of as many steps as the kernel of the next convolution runs together."""
    found: list[Step] = []
    number = 0
    while number < len(steps):
        end = number + 2 if _adds(network, steps[number : number + 2]) else _end(network, steps, number)
        found.append(_one_step(steps[number:end]))
        number = end
    return tuple(found)


def with_stacks(network: Network, segments: Sequence[tuple[Alternative, ...]]) -> list[tuple[Alternative, ...]]:
    """Return segments; of many convolutions that one kernel can run as a stack, with its alternatives alone."""
    found, stacked = list(segments), [tuple(filter(_runs_stacks, segment)) or segment for segment in segments]
    for step in fused(network, [each for segment in stacked for each in segment[0]]):
        layers = [layer for number in step.layers if isinstance(layer := network[number], Conv2d)]
        left, places = sum(layer.nonzeros for layer in layers), sum(layer.weights.size for layer in layers)
        if len(layers) >= LEAST_STACKED and left >= LEAST_STACKED_DENSITY * places:
            for at, segment in enumerate(stacked):
                if segment[0][0].first in step.layers:
                    found[at] = segment
    return found


def _runs_stacks(alternative: Alternative) -> bool:
    return any(isinstance(step.kernel, ConvolutionKernel) and step.kernel.run_stack for step in alternative)


def _adds(network: Network, steps: Sequence[Step]) -> bool:
    """Return whether the first of two steps is a convolution whose kernel takes a sum along that alone reads it."""
    kernel = steps[0].kernel
    if len(steps) < 2 or not isinstance(kernel, ConvolutionKernel) or kernel.with_sum is None:
        return False
    layer, value, number = network[steps[0].first], steps[0].last, steps[1].first
    sources = network.nodes[number].sources
    return (
        isinstance(network[number], Add)
        and isinstance(layer, Conv2d)
        and isinstance(layer.activation, Identity)
        and len(sources) == 2
        and sources.count(value) == 1
        and network.consumers[value] == (number + 1,)
        and _takes(kernel, network, number)
    )


def _end(network: Network, steps: Sequence[Step], first: int) -> int:
    """Return the end of the longest run of steps that reads one value, and whose last value alone is read later."""
    kernels = (step.kernel for step in steps[first:] if isinstance(step.kernel, ConvolutionKernel))
    kernel = next(kernels, None)
    end, before, outside, reach = first + 1, steps[first].first, set[int](), 0
    if kernel is None or kernel.run_stack is None:
        return end
    for number in range(first, len(steps)):
        step = steps[number]
        if step.kernel is not kernel and step.kernel.operation != IMAGE_OPERATION:
            break
        if number > first:
            reach = max((reach, *network.consumers[step.first]))
        outside.update(source for source in network.nodes[step.first].sources if source <= before)
        if len(outside) > 1 or not (step.kernel is kernel or _takes(kernel, network, step.first)):
            break
        if reach <= step.last and any(each.kernel is kernel for each in steps[first : number + 1]):
            end = number + 1
    return end


def _takes(kernel: ConvolutionKernel, network: Network, number: int) -> bool:
    layer = network[number]
    return isinstance(layer, ImageLayer) and kernel.fuses(layer, network.input_shapes(number))


def _one_step(steps: Sequence[Step]) -> Step:
    if len(steps) == 1:
        return steps[0]
    kernel = next(step.kernel for step in steps if isinstance(step.kernel, ConvolutionKernel))
    known = [step.seconds for step in steps if step.kernel is kernel]
    seconds = None if None in known else sum(filter(None, known))
    reason = next((step.reason for step in steps if step.reason), "")
    return Step(steps[0].first, steps[-1].last, kernel, reason, seconds, any(step.is_measured for step in steps))
