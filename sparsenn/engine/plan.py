"""Plan: every decision about a run, taken before it and printed as a few sentences."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

from sparsenn.backends import Backend, Kernel, SparseKernel
from sparsenn.backends.kernel_records import IMAGE_OPERATION
from sparsenn.engine.choices import bucket_of_choice, choice_of, records_of
from sparsenn.engine.choosing import RowsShape
from sparsenn.engine.compiled_network import CompiledNetwork, merges
from sparsenn.engine.finite import HALF_PRECISION
from sparsenn.engine.fitting import fit_steps
from sparsenn.engine.kernels import operation_of
from sparsenn.engine.options import DOUBLE_PRECISION, Options
from sparsenn.engine.steps import Step, takes_half
from sparsenn.network import Network
from sparsenn.plugins import Viewed
from sparsenn.printable import one_line
from sparsenn.structure.merging import Merged

__all__ = ["Plan", "bucket", "plan_for", "with_inputs"]


@dataclass(frozen=True, eq=False)
class Plan(Viewed):
    """How a network is run on some rows: data, made by `sparsenn.plan` or `Session.plan`. `str` says it in words.

    Parameters
    ----------
    compiled : CompiledNetwork
        The network, the device, and what was asked for.
    inputs : int
        Number of samples.
    density : float or None
        Fraction of the samples' elements that is stored; None for dense rows.
    rows : RowsShape
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

    compiled: CompiledNetwork
    inputs: int
    density: float | None
    rows: RowsShape
    steps: tuple[Step, ...]
    batch_size: int
    streams: bool = False
    preparing: float = 0.0
    seconds: float = field(default=0.0, compare=False)

    __repr__ = one_line

    @property
    def network(self) -> Network:
        """The network, before any pass."""
        return self.compiled.network

    @property
    def merged(self) -> Merged:
        """The network that is computed: without repeated outputs, if merging is on."""
        return self.compiled.merged

    @property
    def options(self) -> Options:
        """What was asked for; the precision `auto` as what it means for the network."""
        return self.compiled.options

    @property
    def backend(self) -> Backend:
        """The backend that computes."""
        return self.compiled.backend

    @property
    def droppable_from(self) -> int:
        """The first layer, counted from 0, after which every layer keeps rows of zeros at zero."""
        reviving = [number for number, layer in enumerate(self.network) if not layer.keeps_zero_rows]
        return reviving[-1] if reviving else 0

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
        """Whether the last kernel's outputs lie in memory that nothing else uses: some layers return their inputs."""
        kernel = self.steps[-1].kernel
        return kernel.own_outputs if isinstance(kernel, SparseKernel) else kernel.operation != IMAGE_OPERATION

    @cached_property
    def leaves_outputs(self) -> bool:
        """Whether the last step's result is the outputs, in memory that the caller owns, if all rows survive."""
        return self.merged.expansion is None and self.owns_outputs

    @cached_property
    def keeps_half(self) -> bool:
        """Whether rows are float16 and stay so: the kernels of all steps take them."""
        return self.rows.form == "half" and takes_half(self.steps)

    @cached_property
    def has_half(self) -> bool:
        """Whether a kernel multiplies in float16."""
        return any(step.kernel.precision == HALF_PRECISION for step in self.steps)

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
        """Seconds of a batch, measured or estimated, with weights that stream; None where a step has none."""
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
            "memory_limit": self.compiled.memory_limit,
            "weight_memory": self.compiled.weight_memory,
            "steps": [
                {
                    "first": step.first + 1,
                    "last": step.last,
                    "kernel": step.kernel.name,
                    "reason": step.reason,
                    "seconds": step.seconds,
                    "measured": step.is_measured,
                }
                for step in self.steps
            ],
            "streams": self.streams,
            "preparing_seconds": self.preparing,
            "compaction": self.options.compaction,
            "deduplication": self.options.deduplication,
            "merging": merges(self.options, self.backend),
            "reproducible": self.options.reproducible,
            "computed_neurons": sum(self.merged.network.sizes[1:]),
            "computed_edges": self.merged.network.edges,
        }

    def __str__(self) -> str:
        from sparsenn.engine.wording import describe

        return describe(self)

    def __reduce__(self) -> tuple[Any, ...]:
        choice = self.compiled.choices.get((bucket_of_choice(self.inputs), self.rows.form), {})
        return _planned_again, (self.network, self.options, self.inputs, self.density, self.rows, records_of(choice))


def _planned_again(
    network: Network, options: Options, inputs: int, density: float | None, rows: RowsShape, records: Any = None
) -> Plan:
    compiled, choice = CompiledNetwork.of(network, replace(options)), choice_of(records)
    if choice is not None:
        compiled.choices[bucket_of_choice(inputs), rows.form] = choice
    return plan_for(compiled, inputs, density, rows.form)


def plan_for(
    compiled: CompiledNetwork,
    inputs: int,
    density: float | None,
    form: str,
    size: int | None = None,
) -> Plan:
    """Decide how a number of inputs is run; errors are those of `sparsenn.plan`.

    All inputs, not the `size` that go through the network together, decide on the kernels.
    """
    start = time.perf_counter()
    size = compiled.batch_size(inputs) if size is None else size
    rows = RowsShape(bucket(inputs), form, 1.0 if density is None else density)
    steps, streams, preparing = fit_steps(compiled, rows)
    seconds = compiled.seconds + time.perf_counter() - start
    return Plan(compiled, inputs, density, RowsShape(bucket(size), form), steps, size, streams, preparing, seconds)


@lru_cache(maxsize=256)
def bucket(rows: int) -> int:
    """Return the number of rows that steps are prepared for: rounded up, in four steps to each power of two.

    Prepared steps serve any smaller number of rows, and buffers are larger by a quarter at most.
    """
    if rows <= 8:
        return max(1, rows)
    step = 1 << max(0, (rows - 1).bit_length() - 3)
    return -(-rows // step) * step


def with_inputs(plan: Plan, inputs: int, density: float | None) -> Plan:
    """Return a plan with the same steps for other rows."""
    return replace(plan, inputs=inputs, density=density, batch_size=plan.compiled.batch_size(inputs))
