"""A compiled network: a network after its passes, and how it runs, as far as that does not depend on rows."""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

from sparsenn.backends import Backend, compile_seconds
from sparsenn.engine.choices import Choice
from sparsenn.engine.inputs import check_network
from sparsenn.engine.kernels import Kernels, choose_kernels
from sparsenn.engine.options import Options, resolve_precision
from sparsenn.engine.steps import Step
from sparsenn.errors import ResourceError
from sparsenn.layers import SparseLinear, connected_layer
from sparsenn.network import Network
from sparsenn.runtime.spans import span
from sparsenn.structure.dead_outputs import without_dead_outputs
from sparsenn.structure.merging import Merged, merge_equal_outputs, unmerged

__all__ = ["CompiledNetwork", "merges"]

SMALLEST_DEFAULT_LIMIT = 256 << 20

MIN_HOST_WEIGHT_MEMORY = 256 << 20
"""Default bytes of weights that are prepared at a time in host memory, however little is free."""

_CHOOSING = ("kernel", "precision", "merging", "reproducible", "machine", "compaction", "deduplication")
"""Options on which the choice of kernels depends."""

LARGE_LAYER = 4 << 20  # bytes of weights whose copy to a device takes as long as all other work on a layer


@dataclass(frozen=True, eq=False)
class CompiledNetwork:
    """A network and how it is to be run, as far as that does not depend on the rows."""

    network: Network  # before its passes
    options: Options
    backend: Backend
    kernels: Kernels
    merged: Merged  # the network that is computed
    memory_limit: int  # bytes that rows in flight may take
    weight_memory: int  # bytes that prepared weights may take; larger ones stream: prepared step by step in each batch
    seconds: float  # spent on finding equal outputs and kernels
    compile_seconds: float  # of them
    # all devices of a network, and its sessions, share these
    chosen: dict[Hashable, tuple[Step, ...]] = field(default_factory=dict)  # by rows and kind of device
    choices: dict[tuple[int, str], Choice] = field(default_factory=dict)  # by `bucket_of_choice` and form
    in_order: bool = False  # only kernels of equal bits may replace one another, as sessions elsewhere choose alone
    stores_zeros: bool = True  # whether sparse layers may be multiplied as dense ones, as far as memory goes
    parts: dict[tuple[int, int], CompiledNetwork] = field(default_factory=dict)  # of layers
    lock: threading.Lock = field(default_factory=threading.Lock)  # held by the device that prepares a step

    @classmethod
    def of(cls, network: Network, options: Options, in_order: bool = False) -> CompiledNetwork:
        """Find the device, the kernels and the equal outputs of a network; errors are those of `Session`."""
        check_network(network)
        options = resolve_precision(options, network.needs_float64)
        start = time.perf_counter()
        backend, kernels = choose_kernels(network, options)
        compiled = compile_seconds()
        with span("find equal outputs", "plan"):
            merged = _merged_form(network) if merges(options, backend) else unmerged(network)
        compiled = compile_seconds() - compiled
        limits, seconds = _limits(backend, options), time.perf_counter() - start
        return cls(network, options, backend, kernels, merged, *limits, seconds, compiled, in_order=in_order)

    def on(self, options: Options) -> CompiledNetwork:
        """Return the same network compiled for another device, or with other limits; its equal outputs are known."""
        backend, kernels = choose_kernels(self.network, options)
        rows, weights = _limits(backend, options)
        moved = replace(self, options=options, backend=backend, kernels=kernels, memory_limit=rows)
        moved = replace(moved, weight_memory=weights, seconds=0.0, compile_seconds=0.0, parts={})
        if all(getattr(options, name) == getattr(self.options, name) for name in _CHOOSING):
            return moved
        return replace(moved, chosen={}, choices={})

    def part(self, first: int, last: int) -> CompiledNetwork:
        """Return a chain of layers as a network of their own; layers that positions share take a row a position."""
        if (first, last) not in self.parts:
            network = self.merged.network
            (shape,) = network.input_shapes(first)
            image = (shape[0], shape[1], shape[2]) if len(shape) == 3 else None
            layers = tuple(map(connected_layer, network.layers[first:last]))
            alone = Network(layers, image=None if layers[0] is not network[first] else image)
            options = replace(self.options, merging=False)
            self.parts[first, last] = replace(
                self, network=alone, merged=unmerged(alone), options=options, chosen={}, parts={}
            )
        return self.parts[first, last]

    @property
    def measures(self) -> bool:
        """Whether kernels may be timed: on a machine that is here, and where outputs need not be reproducible."""
        return not self.options.reproducible and self.options.machine is None

    @cached_property
    def _row_bytes(self) -> int:
        """Bytes of a row in flight: before and after a step, once more in a copy, and what waits for later layers."""
        network = self.merged.network
        wide = self.backend.doubles and not self.backend.in_host_memory
        sparse = network[0].family is SparseLinear and not wide  # its rows stay sparse
        waiting = max(sum(network.sizes[value] for value in values[:-1]) for values in network.live)
        return (8 if wide else 4) * (3 * (max(network.sizes[1:]) if sparse else network.widest) + waiting) + 64

    def batch_size(self, inputs: int) -> int:
        """Return how many of the inputs run together; raise a `ResourceError` if the memory limit holds no row."""
        row = self._row_bytes
        if row > self.memory_limit:
            raise ResourceError(
                f"a memory limit of {self.memory_limit:,} bytes does not hold one row, which takes {row:,}"
            )
        return max(1, min(inputs, self.options.batch_size or self.memory_limit // row))

    def lock_of(self, step: Step, streams: bool) -> AbstractContextManager[Any]:
        """Return the lock to hold while a step is prepared, so that no other device prepares one.

        With many small layers that is mostly Python code, in which threads hinder each other. Large layers, and those
        that stream, several devices copy at the same time.
        """
        layers = self.merged.network.layers[step.first : step.last]
        large = sum(layer.weight_bytes for layer in layers) > LARGE_LAYER * len(layers)
        return nullcontext() if large or streams else self.lock


_merged_forms: WeakKeyDictionary[Network, Merged] = WeakKeyDictionary()
"""Networks without dead outputs, and with equal ones merged: `infer` may be called with one again and again."""


def _merged_form(network: Network) -> Merged:
    if network not in _merged_forms:
        _merged_forms[network] = merge_equal_outputs(without_dead_outputs(network))
    return _merged_forms[network]


def merges(options: Options, backend: Backend) -> bool:
    """Whether equal outputs are merged."""
    return not backend.doubles if options.merging is None else options.merging


def _limits(backend: Backend, options: Options) -> tuple[int, int]:
    """Return the bytes that rows in flight may take, and those that prepared weights may."""
    free = backend.free_memory()
    limit = options.memory_limit or max(SMALLEST_DEFAULT_LIMIT, free // 2)
    least = MIN_HOST_WEIGHT_MEMORY if backend.in_host_memory else 1
    return limit, options.weight_memory or max(least, free // 2)
