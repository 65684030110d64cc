"""Plan: every decision about a run, made before it and printed as a few sentences."""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any
from weakref import WeakKeyDictionary

from sparsenn.backends import Backend, Kernel, SparseKernel, machine_named
from sparsenn.backends.steps import IMAGE_OPERATION
from sparsenn.engine.choosing import Rows, choose_steps
from sparsenn.engine.dead_outputs import without_dead_outputs
from sparsenn.engine.fitting import fit_steps
from sparsenn.engine.inputs import check_network
from sparsenn.engine.kernels import DOUBLE_PRECISION, Kernels, choose_kernels, operation_of
from sparsenn.engine.merging import Merged, merge_equal_outputs, unmerged
from sparsenn.engine.options import Options
from sparsenn.engine.steps import CONV_OPERATION, DENSE_OPERATION, Step
from sparsenn.engine.wording import describe
from sparsenn.errors import ResourceError, UsageError
from sparsenn.formats import Array
from sparsenn.layers import SparseLinear
from sparsenn.network import Network
from sparsenn.printable import one_line
from sparsenn.spans import span

__all__ = ["Plan", "Problem", "backend_of", "bucket", "with_inputs"]

SMALLEST_DEFAULT_LIMIT = 256 << 20

LARGE_LAYER = 4 << 20
"""Bytes of weights that take as long to copy to a device as what else is done for a layer."""


OWN_OUTPUTS = (CONV_OPERATION, DENSE_OPERATION)
"""Operations whose kernels give outputs in memory that nothing else uses; some layers of images return their inputs."""


@dataclass(frozen=True, eq=False)
class Plan:
    """How a network is run on some rows: data, made by `sparsenn.plan` or `Session.plan`. `str` says it in words.

    Parameters
    ----------
    problem : Problem
        The network, the device, and what was asked for.
    inputs : int
        Number of samples.
    density : float or None
        Fraction of the samples' elements that is stored; None for dense rows.
    rows : Rows
        Which rows go through the steps together.
    steps : tuple of Step
        Consecutive layers with their kernels, in the order in which they run.
    batch_size : int
        Samples that go through the network together.
    streams : bool, default False
        Whether weights exceed their memory limit: each step's are then prepared when they are needed.
    preparing : float, default 0
        Seconds that preparing weights is estimated to take for each batch, where they stream.
    seconds : float, default 0
        Seconds that planning took.
    """

    problem: Problem
    inputs: int
    density: float | None
    rows: Rows
    steps: tuple[Step, ...]
    batch_size: int
    streams: bool = False
    preparing: float = 0.0
    seconds: float = field(default=0.0, compare=False)

    __repr__ = one_line

    @property
    def network(self) -> Network:
        """The network as given."""
        return self.problem.network

    @property
    def merged(self) -> Merged:
        """The network that is computed: without repeated outputs, if merging is on."""
        return self.problem.merged

    @property
    def options(self) -> Options:
        """What was asked for; the precision `auto` as what it means for the network."""
        return self.problem.options

    @property
    def backend(self) -> Backend:
        """What computes."""
        return self.problem.backend

    @property
    def droppable_from(self) -> int:
        """The layer, counted from 0, from which on all later layers keep rows of zeros at zero."""
        return self.problem.droppable_from

    @property
    def kernel(self) -> Kernel:
        """The kernel that runs the first layers."""
        return self.steps[0].kernel

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """For each layer, the kernel that runs it."""
        return tuple(step.kernel for step in self.steps for _ in step.layers)

    @property
    def device(self) -> str:
        """The device, in words."""
        return self.backend.description

    @property
    def batches(self) -> tuple[tuple[int, int], ...]:
        """The (start, stop) ranges of inputs that run together."""
        starts = range(0, self.inputs, self.batch_size)
        return tuple((start, min(start + self.batch_size, self.inputs)) for start in starts)

    @property
    def groups_rows(self) -> bool:
        """Whether a kernel gains from many rows that meet: equal ones are computed once, and dead ones leave."""
        return any(isinstance(step.kernel, SparseKernel) and step.kernel.groups_rows for step in self.steps)

    @cached_property
    def owns_outputs(self) -> bool:
        """Whether the last kernel's outputs lie in memory that nothing else uses."""
        kernel = self.steps[-1].kernel
        return kernel.own_outputs if isinstance(kernel, SparseKernel) else kernel.operation in OWN_OUTPUTS

    @cached_property
    def leaves_outputs(self) -> bool:
        """Whether what the last step leaves is the outputs, in memory that the caller owns, if rows all stay."""
        return self.merged.expansion is None and self.owns_outputs

    @cached_property
    def keeps_half(self) -> bool:
        """Whether it is for rows of float16, and these stay that: the kernels of all steps take them."""
        return self.rows.form == "half" and all(step.kernel.half_rows for step in self.steps)

    @property
    def precisions(self) -> tuple[str | None, ...]:
        """What each layer is multiplied in: `float64` where that was asked for, else what `Kernel.precision` says.

        That is None for layers of images other than convolutions.
        """
        double = self.options.precision == DOUBLE_PRECISION
        return tuple(
            None if operation_of(layer) == IMAGE_OPERATION else DOUBLE_PRECISION if double else kernel.precision
            for layer, kernel in zip(self.network, self.kernels, strict=True)
        )

    @property
    def estimate(self) -> float | None:
        """Seconds that a batch is estimated to take, with weights that stream; None where a step is not estimated."""
        known = [step.seconds for step in self.steps if step.seconds is not None]
        if len(known) < len(self.steps):
            return None
        return max(sum(known), self.preparing) if self.backend.prepares_ahead else sum(known) + self.preparing

    def to_dict(self) -> dict[str, Any]:
        """Return the decisions as plain values.

        Returns
        -------
        dict
            What `json.dumps` takes.
        """
        return {
            "text": str(self),
            "device": self.device,
            "kernel": self.kernel.name,
            "kernels": list(dict.fromkeys(step.kernel.name for step in self.steps)),
            "precision": self.options.precision,
            "precisions": list(self.precisions),
            "batch_size": self.batch_size,
            "batches": len(self.batches),
            "memory_limit": self.problem.memory_limit,
            "weight_memory": self.problem.weight_memory,
            "steps": [
                {
                    "first": step.first + 1,
                    "last": step.last,
                    "kernel": step.kernel.name,
                    "reason": step.reason,
                    "seconds": step.seconds,
                }
                for step in self.steps
            ],
            "streams": self.streams,
            "preparing_seconds": self.preparing,
            "compaction": self.options.compaction,
            "deduplication": self.options.deduplication,
            "merging": self.problem.merging,
            "reproducible": self.options.reproducible,
            "computed_neurons": sum(self.merged.network.sizes[1:]),
            "computed_edges": self.merged.network.edges,
        }

    def __str__(self) -> str:
        return describe(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return _planned_again, (self.network, self.options, self.inputs, self.density, self.rows)


def _planned_again(network: Network, options: Options, inputs: int, density: float | None, rows: Rows) -> Plan:
    """Return the plan of another process, made anew: kernels are functions of this one."""
    return Problem.of(network, replace(options)).plan(inputs, density, rows.form)


@dataclass(frozen=True, eq=False)
class Problem:
    """A network and how it is to be run, as far as that does not depend on the rows.

    Parameters
    ----------
    network : as given.
    options : what was asked for.
    backend : what computes.
    kernels : those that may run the layers.
    merged : the network that is computed.
    memory_limit : bytes that rows in flight may take.
    weight_memory : bytes that prepared weights may take; where they take more, they are prepared in parts.
    seconds : spent on finding equal outputs and kernels.
    compile_seconds : the part of them spent on compiling.
    chosen : steps, by what they were chosen for; the same object on all devices, so that those of one kind share them.
    turns : which devices take at making steps ready.
    """

    network: Network
    options: Options
    backend: Backend
    kernels: Kernels
    merged: Merged
    memory_limit: int
    weight_memory: int
    seconds: float
    compile_seconds: float
    chosen: dict[Hashable, tuple[Step, ...]] = field(default_factory=dict)
    turns: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of(cls, network: Network, options: Options) -> Problem:
        """Find the device, the kernels and the equal outputs of a network.

        Raises
        ------
        UsageError
            The network is not a `Network`; the device, the kernel or the precision does not exist, or they do not go
            together or with the network.
        DeviceError
            The device is not there.
        """
        check_network(network)
        options = options.resolved(network.needs_float64)
        start = time.perf_counter()
        backend, kernels = _chosen(network, options)
        merging = _merges(options, backend)
        compiled = backend.compile_seconds()
        with span("look for equal outputs", "plan"):
            merged = _merged_form(network) if merging else unmerged(network)
        compiled = backend.compile_seconds() - compiled
        limits = _limits(backend, options)
        return cls(network, options, backend, kernels, merged, *limits, time.perf_counter() - start, compiled)

    def on(self, options: Options) -> Problem:
        """Return the same problem on another device; equal outputs are not looked for again.

        Parameters
        ----------
        options : these, with another device, limits of memory or batch size.

        Raises
        ------
        SparseNNError
            As `of` does.
        """
        backend, kernels = _chosen(self.network, options)
        limit, weights = _limits(backend, options)
        return replace(
            self,
            options=options,
            backend=backend,
            kernels=kernels,
            memory_limit=limit,
            weight_memory=weights,
            seconds=0.0,
            compile_seconds=0.0,
        )

    @property
    def merging(self) -> bool:
        """Whether equal outputs are merged."""
        return _merges(self.options, self.backend)

    @property
    def droppable_from(self) -> int:
        """The first layer, counted from 0, after which every layer keeps rows of zeros at zero."""
        reviving = [number for number, layer in enumerate(self.network) if not layer.keeps_zero_rows]
        return reviving[-1] if reviving else 0

    @cached_property
    def _row_bytes(self) -> int:
        """Bytes of a row in flight: before and after a step, once more in a copy, and what waits for later layers."""
        network = self.merged.network
        wide = self.backend.doubles and not self.backend.in_host_memory
        sparse = network[0].family is SparseLinear and not wide  # its rows stay sparse
        waiting = max(sum(network.sizes[value] for value in values[:-1]) for values in network.live)
        return (8 if wide else 4) * (3 * (max(network.sizes[1:]) if sparse else network.widest) + waiting) + 64

    def batch_size(self, inputs: int) -> int:
        """Return how many of the inputs go through the network together.

        Raises
        ------
        ResourceError
            The memory limit does not hold a single row.
        """
        row = self._row_bytes
        if row > self.memory_limit:
            raise ResourceError(
                f"a memory limit of {self.memory_limit:,} bytes does not hold one row, which takes {row:,}"
            )
        return max(1, min(inputs, self.options.batch_size or self.memory_limit // row))

    def plan(
        self, inputs: int, density: float | None, form: str, alive: Array | None = None, size: int | None = None
    ) -> Plan:
        """Decide how a number of inputs is run.

        Parameters
        ----------
        density : fraction of their elements that is stored; None for dense rows.
        form : of the rows, as `Rows` has it.
        alive : as `choose_steps` takes it.
        size : inputs that go through the network together; by default what `batch_size` says. Which kernels run
            depends on all inputs, not on these.

        Raises
        ------
        UsageError
            None of the kernels can run some layers.
        ResourceError
            The memory limit does not hold a single row.
        """
        start = time.perf_counter()
        size = self.batch_size(inputs) if size is None else size
        rows = Rows(bucket(size), form)
        given = Rows(bucket(inputs), form, 1.0 if density is None else density)
        found = fit_steps(
            lambda dense_bytes: self._steps(given, alive, dense_bytes),
            self.merged.network,
            self.backend,
            self.weight_memory,
        )
        spent = self.seconds + time.perf_counter() - start
        return Plan(self, inputs, density, rows, found.steps, size, found.streams, found.preparing, spent)

    def _steps(self, given: Rows, alive: Array | None, dense_bytes: int) -> tuple[Step, ...]:
        """Choose the steps for rows, unless they have been chosen for such rows and a device of this kind."""
        backend = self.backend
        looked = None if alive is None else alive.tobytes()
        key = backend.device, backend.machine, given, looked, dense_bytes
        if key not in self.chosen:
            saves = self.options.compaction or self.options.deduplication
            try:
                self.chosen[key] = choose_steps(
                    self.merged.network, backend, self.kernels, given, dense_bytes, alive, saves
                )
            except UsageError as error:
                if not self.options.reproducible:
                    raise
                raise UsageError(
                    f"{error}; no other kernel is reproducible: leave out reproducible, or use device cpu"
                ) from error
        return self.chosen[key]

    def turn(self, step: Step, streams: bool) -> AbstractContextManager[Any]:
        """Return the turn of this device at making a step ready, during which no other device has one.

        With many small layers that is mostly Python code, in which threads hinder each other. Large layers, and those
        that are prepared again in every run, several devices copy at the same time.

        Parameters
        ----------
        streams : whether the step is prepared in every run.
        """
        layers = self.merged.network.layers[step.first : step.last]
        large = sum(layer.weight_bytes for layer in layers) > LARGE_LAYER * len(layers)
        return nullcontext() if large or streams else self.turns

    def sparse_bytes(self, first: int, last: int) -> int:
        """Estimate what the weights of some layers take once they are prepared for sparse kernels."""
        return sum(map(self.backend.prepared_bytes, self.merged.network.layers[first:last]))


_merged_forms: WeakKeyDictionary[Network, Merged] = WeakKeyDictionary()
"""Of networks that have been planned for: `infer` may be called over and over with the same one."""


def _merged_form(network: Network) -> Merged:
    """Return a network without dead outputs, and with equal ones merged; looked for once."""
    found = _merged_forms.get(network)
    if found is None:
        found = _merged_forms[network] = merge_equal_outputs(without_dead_outputs(network))
    return found


def backend_of(network: Network, options: Options) -> Backend:
    """Return what computes a network.

    Raises
    ------
    SparseNNError
        As `Problem.of` does.
    """
    check_network(network)
    return _chosen(network, options.resolved(network.needs_float64))[0]


def _chosen(network: Network, options: Options) -> tuple[Backend, Kernels]:
    """Return what computes, and the kernels that may run a network on it."""
    elsewhere = machine_named(options.machine) if isinstance(options.machine, str) else options.machine
    return choose_kernels(network, options.device, options.kernel, options.precision, elsewhere, options.reproducible)


def _merges(options: Options, backend: Backend) -> bool:
    """Return whether equal outputs are merged: as asked for, otherwise unless the backend computes in float64."""
    return not backend.doubles if options.merging is None else options.merging


def _limits(backend: Backend, options: Options) -> tuple[int, int]:
    """Return the bytes that rows in flight may take, and those that prepared weights may."""
    limit = options.memory_limit or max(SMALLEST_DEFAULT_LIMIT, backend.free_memory() // 2)
    return limit, options.weight_memory or backend.weight_memory()


@lru_cache(maxsize=256)
def bucket(rows: int) -> int:
    """Return the number of rows that steps are made ready for: rounded up, in four steps to each power of two.

    Steps that are ready for some number of rows serve any smaller one. For a quarter of spare room at most, a call with
    a few rows more or fewer need not be planned, or made ready, anew.
    """
    if rows <= 8:
        return max(1, rows)
    step = 1 << max(0, (rows - 1).bit_length() - 3)
    return -(-rows // step) * step


def with_inputs(plan: Plan, inputs: int, density: float | None) -> Plan:
    """Return a plan for other rows that are run in the same way."""
    return replace(plan, inputs=inputs, density=density, batch_size=plan.problem.batch_size(inputs))
