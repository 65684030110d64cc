"""Sections: consecutive layers of one family, prepared together; each class knows how layers of its family are run.

What differs between sparse layers, dense ones and layers of images is said here, and nowhere else in the engine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np

from sparsenn.backends import (
    Backend,
    DenseKernel,
    Features,
    Kernel,
    SparseKernel,
    StepInput,
    StepOutput,
    image_kernel,
    launch_dense,
    launch_images,
    run_images,
)
from sparsenn.engine.kernels import Chosen, Kernels, choose_convolution, fastest_dense
from sparsenn.formats import CSR, Array
from sparsenn.layers import Conv2d, ImageLayer, Linear, SparseLinear
from sparsenn.network import Network

__all__ = ["FIRST_LOOK", "Call", "DenseSection", "ImageSection", "Pace", "Section", "SparseSection", "section_of"]

FIRST_LOOK = 24
"""Layers after which it is first looked how many rows are left, where the kernel for the rest depends on that."""

DEPTH = 6
"""Layers between two looks for dead and equal rows. In the challenge's networks a tenth to a half of the rows go in
each of the first layers; looking after every one costs more than it saves."""

SCATTERED_EDGE = 1.0
GATHERED_EDGE = 1 / 15
LOADED_VALUE = 1.0
CLEARED_VALUE = 1 / 15
"""Relative costs, in scattered multiply-adds, of one multiply-add either way, of bringing one non-zero into a panel
and of clearing one of its elements. The first two are about as `bench/bench_spmspm.py` shows with AVX-512;
the last two are estimates."""


@dataclass
class Pace:
    """How often rows are looked at on their way through sparse layers.

    depth, removed : layers of the last launch that took some, and the share of rows that it removed.
    """

    depth: int = 1
    removed: float = 1.0


@dataclass(frozen=True)
class Call:
    """Layers `first` to `last`, counted from 0, their kernel, and a function from rows to outputs on the device."""

    first: int
    last: int
    kernel: Kernel
    run: Callable[[Array], Array]


@dataclass(frozen=True, eq=False)
class Section(ABC):
    """Consecutive layers of one family.

    Parameters
    ----------
    backend : what computes.
    network : all layers, as they are computed.
    copies : for each layer of it, how many of the given network's neurons each output stands for.
    kernels : those that may run the network.
    first, last : the section's layers, counted from 0, `last` excluded.
    """

    backend: Backend
    network: Network
    copies: tuple[Array, ...]
    kernels: Kernels
    first: int
    last: int

    is_whole: ClassVar[bool] = False
    """Whether a stack is launched from its first to its last layer: fewer layers need a stack of their own."""

    finds_equal_rows: ClassVar[bool] = False
    """Whether equal rows are looked for after all launches; else only before sparse layers."""

    @abstractmethod
    def prepare(self) -> Any:
        """Return the layers' stack, on the device."""

    @abstractmethod
    def kernel_for(self, layer: int, rows: int) -> Kernel:
        """Return the kernel of a launch that begins at `layer` with so many rows.

        Raises
        ------
        UsageError
            None can run it.
        """

    def chosen(self, layer: int, rows: int) -> dict[int, Chosen]:
        """Return for each layer from `layer` on the kernel that would run it with so many rows, and why that.

        Raises
        ------
        UsageError
            None can run it.
        """
        return dict.fromkeys(range(layer, self.last), Chosen(self.kernel_for(layer, rows)))

    def part(self, first: int, last: int) -> Section:
        """Return the section of some of its layers."""
        return replace(self, first=first, last=last)

    def end(self, kernel: Kernel, layer: int, pace: Pace, looks: bool) -> int:
        """Return the layer before which a launch ends that begins at `layer`.

        Parameters
        ----------
        pace : of the batch; brought up to date.
        looks : whether dead or equal rows are looked for between launches.
        """
        return self.last

    def keep_pace(self, pace: Pace, before: int, after: int) -> None:
        """Take note of how many rows a launch was given, and how many it left."""
        return

    @abstractmethod
    def launch(self, kernel: Kernel, step: StepInput, layer: int, stop: int) -> StepOutput:
        """Run layers `layer` to `stop`, which are those of the step."""

    def groups_after(self, kernel: Kernel, stop: int) -> bool:
        """Whether equal rows are looked for after a launch that ends before layer `stop`.

        What other layers than sparse ones give is looked at for the sparse layers that follow only: it is seldom equal.
        """
        return stop < len(self.network) and self.network[stop].family is SparseLinear

    def scatters(self, layer: int, features: Features) -> bool:
        """Whether multiplying only the non-zeros of `features` in this layer beats gathering from dense rows."""
        return False


class SparseSection(Section):
    """Sparse layers: as many a launch as pays; between launches, rows leave and equal ones become one."""

    finds_equal_rows = True

    def prepare(self) -> Any:
        """Return the layers' stack, on the device."""
        return self.backend.prepare(self._layers(self.first), self.copies[self.first : self.last])

    def kernel_for(self, layer: int, rows: int) -> Kernel:
        """Return the kernel of a launch that begins at `layer` with so many rows.

        Where there is a choice, the first launch of a network is the first kernel's. Then it is known how fast rows go,
        and that kernel is taken whose estimate is least if no more of them leave.
        """
        candidates, machine = self.kernels.sparse, self.backend.machine
        if layer == 0 or len(candidates) == 1:
            return candidates[0]
        rest = self._layers(layer)
        return min(candidates, key=lambda kernel: kernel.seconds(machine, rest, rows) if kernel.seconds else 0.0)

    def _layers(self, first: int) -> tuple[SparseLinear, ...]:
        return self.network.sparse_layers(first, self.last)

    def end(self, kernel: Kernel, layer: int, pace: Pace, looks: bool) -> int:
        """Return the layer before which a launch ends that begins at `layer`.

        While rows go, it looks for dead and equal ones every few layers; once none do, less and less often.
        """
        assert isinstance(kernel, SparseKernel)
        pace.depth = self._depth(kernel, layer, pace, looks)
        return min(layer + pace.depth, self.last)

    def _depth(self, kernel: SparseKernel, layer: int, pace: Pace, looks: bool) -> int:
        if not kernel.fuses:
            return 1
        if kernel.groups_rows:
            return FIRST_LOOK if layer == 0 and len(self.kernels.sparse) > 1 else len(self.network)
        if not looks:
            return len(self.network)
        return DEPTH if pace.removed > 1 / 8 else 2 * pace.depth

    def keep_pace(self, pace: Pace, before: int, after: int) -> None:
        """Take note of how many rows a launch was given, and how many it left."""
        pace.removed = 1 - after / max(1, before)

    def launch(self, kernel: Kernel, step: StepInput, layer: int, stop: int) -> StepOutput:
        """Run layers `layer` to `stop`, which are those of the step."""
        output: StepOutput = kernel.launch(step)
        return output

    def groups_after(self, kernel: Kernel, stop: int) -> bool:
        """Whether equal rows are looked for after a launch: unless the kernel does so itself."""
        assert isinstance(kernel, SparseKernel)
        return not kernel.groups_rows

    def scatters(self, layer: int, features: Features) -> bool:
        """Whether multiplying only the non-zeros of `features` in this layer beats gathering from dense rows."""
        weights = self.network.sparse_layers(layer, layer + 1)[0].weights
        rows, width = features.shape
        nonzeros = features.nnz if isinstance(features, CSR) else int(np.count_nonzero(features))
        loads = nonzeros if isinstance(features, CSR) else rows * width
        degree = weights.nnz / max(1, width)
        gather = rows * weights.nnz * GATHERED_EDGE + loads * LOADED_VALUE + rows * width * CLEARED_VALUE
        scatter = nonzeros * degree * SCATTERED_EDGE + rows * weights.shape[1] * CLEARED_VALUE
        return bool(scatter < gather)


class DenseSection(Section):
    """Dense layers: all of them in one launch, unless hidden values have to be looked at."""

    is_whole = True

    def prepare(self) -> Any:
        """Return the layers' stack, on the device."""
        return self.backend.prepare_dense(self.network.dense_layers(self.first, self.last))

    def kernel_for(self, layer: int, rows: int) -> Kernel:
        """Return the kernel that should take the least time for all layers from `layer` on."""
        layers = self.network.dense_layers(layer, self.last)
        return fastest_dense(self.kernels.dense, self.backend.machine, layers, rows, layer)

    def launch(self, kernel: Kernel, step: StepInput, layer: int, stop: int) -> StepOutput:
        """Run layers `layer` to `stop`, which are those of the step."""
        assert isinstance(kernel, DenseKernel)
        return launch_dense(self.backend, kernel, self.network.dense_layers(layer, stop), step)

    def calls(self) -> Iterator[Call]:
        """Prepare the layers, and yield one call for all of them."""
        kernel = self.kernel_for(self.first, rows=1)
        yield Call(self.first, self.last, kernel, partial(kernel.launch, self.prepare()))


class ImageSection(Section):
    """Layers of images: one a launch."""

    def _layers(self) -> tuple[ImageLayer, ...]:
        return self.network.image_layers(self.first, self.last)

    def prepare(self) -> Any:
        """Return the layers' stack, on the device."""
        return self.backend.prepare_images(self._layers(), self.network.shapes[self.first : self.last + 1])

    def chosen(self, layer: int, rows: int) -> dict[int, Chosen]:
        """Return each convolution's kernel, and why that; other layers are run by the backend's own functions."""
        return {number: self._chosen[number] for number in range(layer, self.last)}

    @cached_property
    def _chosen(self) -> dict[int, Chosen]:
        return {number: self._choice(number, layer) for number, layer in enumerate(self._layers(), start=self.first)}

    def _choice(self, number: int, layer: ImageLayer) -> Chosen:
        if not isinstance(layer, Conv2d):
            return Chosen(image_kernel(self.backend, layer))
        channels, height, width = self.network.shapes[number]
        image = channels, height, width
        return choose_convolution(self.kernels.convolutions, self.backend.machine, layer, image, number)

    def kernel_for(self, layer: int, rows: int) -> Kernel:
        """Return the kernel of a launch of `layer`."""
        return self._chosen[layer].kernel

    def end(self, kernel: Kernel, layer: int, pace: Pace, looks: bool) -> int:
        """Return the layer that follows."""
        return layer + 1

    def launch(self, kernel: Kernel, step: StepInput, layer: int, stop: int) -> StepOutput:
        """Run one layer, which is that of the step."""
        return launch_images(self.backend, kernel, step)

    def calls(self) -> Iterator[Call]:
        """Prepare the layers, and yield a call for each."""
        stack = self.prepare()
        for number, chosen in self._chosen.items():
            run = partial(run_images, chosen.kernel, stack, number - self.first)
            yield Call(number, number + 1, chosen.kernel, run)


_SECTIONS: dict[type, type[Section]] = {SparseLinear: SparseSection, Linear: DenseSection, ImageLayer: ImageSection}


def section_of(
    backend: Backend, network: Network, copies: tuple[Array, ...], kernels: Kernels, first: int, last: int
) -> Section:
    """Return layers `first` to `last` of a network, which are of one family, as a section; parameters as `Section`."""
    return _SECTIONS[network[first].family](backend, network, copies, kernels, first, last)
