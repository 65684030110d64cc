"""Plan: every decision about a run, taken before it and printed as a few sentences."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, Unpack

from sparsenn.backends import Backend, ConvolutionKernel, Kernel, SparseKernel, image_kernel
from sparsenn.backends.kernel_records import DENSE_OPERATION, IMAGE_OPERATION, WHOLE_OPERATION
from sparsenn.engine.choosing import RowsShape, choose_steps, fused
from sparsenn.engine.compiled_network import CompiledNetwork, operation_of
from sparsenn.engine.finite import HALF_PRECISION
from sparsenn.engine.options import DOUBLE_PRECISION, NamedOptions, Options, read_options
from sparsenn.engine.steps import WHOLE, Alternative, Step, bucket_of_choice, choice_of, records_of
from sparsenn.formats.arrays import size as whole_size
from sparsenn.layers import Conv2d, SparseLinear, connected_layer
from sparsenn.network import Network
from sparsenn.plugins import Viewed, views
from sparsenn.printable import one_line
from sparsenn.runtime.workers import chunks
from sparsenn.structure.merging import Merged, unmerged

PREPARED_BYTE_SECONDS = 2e-9
"""Time to prepare a byte of weights: on the host, measured on AMD EPYC (Zen 5), and for an H100, with its copy."""


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

    @cached_property
    def merged(self) -> Merged:
        """The network that is computed: without repeated outputs, if merging is on and kernels run it."""
        is_whole = self.kernel.operation == WHOLE_OPERATION
        return unmerged(self.network) if is_whole else self.compiled.merged

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
        return max((number for number, layer in enumerate(self.network) if not layer.keeps_zero_rows), default=0)

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
        return tuple(chunks(self.inputs, self.batch_size))

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
        return self.rows.form == "half" and Alternative(self.steps).takes_half

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
        return dict(views().values_of(self))

    def __str__(self) -> str:
        return str(views().text_of(self))

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


def plan_for(compiled: CompiledNetwork, inputs: int, density: float | None, form: str, size: int | None = None) -> Plan:
    """Decide how a number of inputs is run, `size` at a time; errors are those of `sparsenn.plan`."""
    start = time.perf_counter()
    size = compiled.batch_size(inputs) if size is None else size
    # all inputs, not those that go through the network together, decide on the kernels
    rows = RowsShape(bucket(inputs), form, 1.0 if density is None else density)
    steps, streams, preparing = _fit_steps(compiled, rows)
    seconds = compiled.seconds + time.perf_counter() - start
    return Plan(compiled, inputs, density, RowsShape(bucket(size), form), steps, size, streams, preparing, seconds)


def plan_rows(network: Network, rows: int, **options: Unpack[NamedOptions]) -> Plan:
    """Decide how a network is run on a number of dense rows, by stored choices, else by priors; errors are `plan`'s."""
    compiled, count = CompiledNetwork.of(network, read_options(options)), whole_size(rows, "rows")
    if compiled.measures and (choice := compiled.stored_choice(count, "dense")) is not None:
        compiled.choices[bucket_of_choice(count), "dense"] = choice
    return plan_for(compiled, count, None, "dense")


def _fit_steps(compiled: CompiledNetwork, rows: RowsShape) -> tuple[tuple[Step, ...], bool, float]:
    """Choose the steps of a plan by the memory that their weights take.

    On the host, where dense kernels add up as sparse ones do, layers stay sparse where storing their zeros takes more
    memory than there is, unless streaming those takes less time. On a GPU results must not depend on free memory.
    Returned are the steps, cut for memory where their weights stream; whether they do; and the seconds that preparing
    them is estimated to take for each batch, 0 where they do not stream.
    """
    backend, free = compiled.backend, compiled.weight_memory
    steps = choose_steps(compiled, rows)
    sizes = prepared_bytes(compiled, *steps)
    if sum(sizes) > free and steps[0].kernel.operation == WHOLE_OPERATION:  # no part of which can stream
        known = compiled.choices[bucket_of_choice(rows.count), rows.form]
        steps = choose_steps(compiled, rows, {key: each for key, each in known.items() if key != WHOLE})
        sizes = prepared_bytes(compiled, *steps)
    if sum(sizes) <= free:
        return steps, False, 0.0
    if backend.in_host_memory:
        sparse = choose_steps(replace(compiled, stores_zeros=False, parts={}), rows)
        sparse_sizes = prepared_bytes(compiled, *sparse)
        if sum(sparse_sizes) <= free:
            return sparse, False, 0.0

        def seconds(candidate: tuple[Sequence[Step], Sequence[int]]) -> float:
            return PREPARED_BYTE_SECONDS * sum(candidate[1]) + sum(step.seconds or 0.0 for step in candidate[0])

        steps, sizes = min((steps, sizes), (sparse, sparse_sizes), key=seconds)
    limit = free // 2 if backend.prepares_ahead else free
    return tuple(_cut(compiled.merged.network, steps, sizes, limit)), True, PREPARED_BYTE_SECONDS * sum(sizes)


def prepared_bytes(compiled: CompiledNetwork, *steps: Step) -> list[int]:
    """Estimate the bytes of each layer's weights, prepared for the kernels of steps; one number for ONNX Runtime's."""
    graph = compiled.network.onnx_graph
    if graph is not None and steps[0].kernel.operation == WHOLE_OPERATION:
        return [len(graph.model)]
    return [
        compiled.backend.prepared_bytes(
            layer, step.kernel.operation == DENSE_OPERATION and isinstance(layer, SparseLinear)
        )
        for step in steps
        for layer in map(connected_layer, compiled.merged.network.layers[step.first : step.last])
    ]


def _cut(network: Network, steps: Sequence[Step], sizes: Sequence[int], limit: int) -> Iterator[Step]:
    """Cut steps so that the prepared weights of each, of `sizes` by layer, are within a limit, or a single layer."""
    for step in steps:
        first, held = step.first, 0
        for number in step.layers:
            if number > first and held + sizes[number] > limit:
                yield from _some_layers(network, step, first, number)
                first, held = number, 0
            held += sizes[number]
        yield from _some_layers(network, step, first, step.last)


def _some_layers(network: Network, step: Step, first: int, last: int) -> tuple[Step, ...]:
    """Return the steps of some of a step's layers: of images as many as still read one value, and leave one."""
    some = step.of_layers(first, last)
    if some is step or not isinstance(step.kernel, ConvolutionKernel):
        return (some,)
    alone = []
    for number in some.layers:
        layer: Any = network[number]
        kernel = step.kernel if isinstance(layer, Conv2d) else image_kernel(step.kernel.device, layer)
        alone.append(replace(some.of_layers(number, number + 1), kernel=kernel))
    return fused(network, alone)


@lru_cache(maxsize=256)
def bucket(rows: int) -> int:
    """Return the number of rows that steps are prepared for: rounded up, in four steps to each power of two."""
    # prepared steps serve any smaller number of rows, and buffers are larger by a quarter at most
    if rows <= 8:
        return max(1, rows)
    step = 1 << max(0, (rows - 1).bit_length() - 3)
    return -(-rows // step) * step


def with_inputs(plan: Plan, inputs: int, density: float | None) -> Plan:
    """Return a plan with the same steps for other rows."""
    size = plan.compiled.batch_size(inputs)
    if (plan.inputs, plan.density, plan.batch_size) == (inputs, density, size):
        return plan
    return replace(plan, inputs=inputs, density=density, batch_size=size)
