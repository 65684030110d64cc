"""Fusing: steps of layers of images become one where a kernel of convolutions runs them together, branches included."""

from __future__ import annotations

from collections.abc import Sequence

from sparsenn.backends import ConvolutionKernel
from sparsenn.backends.kernel_records import IMAGE_OPERATION
from sparsenn.engine.steps import Step
from sparsenn.layers import ImageLayer
from sparsenn.network import Network

__all__ = ["fused"]


def fused(network: Network, steps: Sequence[Step]) -> tuple[Step, ...]:
    """Make one step, from each on, of as many steps as the kernel of the next convolution runs together."""
    found: list[Step] = []
    number = 0
    while number < len(steps):
        end = _end(network, steps, number)
        found.append(_one_step(steps[number:end]))
        number = end
    return tuple(found)


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
