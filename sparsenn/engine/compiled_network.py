"""A compiled network: a network after its passes, the kernels that may run it, and the key of measured choices."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from hashlib import blake2b
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np

from sparsenn.backends import DOUBLE_DEVICE, Backend, Machine, machine_named, select_backend
from sparsenn.backends.foreign import ONNX_RUNTIME, onnx_runtime_version
from sparsenn.backends.kernel_records import CONV_OPERATION, DENSE_OPERATION, IMAGE_OPERATION, SPARSE_OPERATION
from sparsenn.backends.registry import automatic, kernel_named, permitted_kernels
from sparsenn.engine.finite import OverflowGuard
from sparsenn.engine.inputs import check_network
from sparsenn.engine.options import DOUBLE_PRECISION, PRECISIONS, Options, resolve_precision
from sparsenn.engine.steps import Choice, Step, bucket_of_choice, choice_of
from sparsenn.errors import ResourceError, UsageError
from sparsenn.layers import CombiningLayer, Conv2d, Flatten, ForeignLayer, ImageLayer, Linear, Slice, SparseLinear
from sparsenn.layers.per_position import connected_layer, positions_of
from sparsenn.layers.softmax import SoftmaxLayer
from sparsenn.model import fills_gaps
from sparsenn.network import Network
from sparsenn.runtime import choices
from sparsenn.runtime.spans import span
from sparsenn.runtime.storage import package_version
from sparsenn.runtime.timing import compile_seconds
from sparsenn.structure.dead_outputs import without_dead_outputs
from sparsenn.structure.merging import Merged, merge_equal_outputs, unmerged

LEAST_DEFAULT_BYTES = 256 << 20  # default limits of rows, and of weights in host memory, however little is free

_CHOOSING = ("kernel", "precision", "merging", "reproducible", "machine", "compaction", "deduplication")
"""Options on which the choice of kernels depends."""

SAMPLED_INDICES = 4096  # indices of a sparse layer that its digest covers, evenly spread

LEADING_BITS = 3
"""Binary digits of a convolution's weights other than zero that count: layers of like numbers take as long."""

ON_GPU = (Flatten, Slice, SoftmaxLayer, CombiningLayer)  # layers of images that GPUs compute in float64

Kernels: TypeAlias = dict[str, tuple[Any, ...]]
"""The kernels that may run a network's layers, by operation: of the precision that is asked for, then of float32."""

_OPERATION_OF = {
    SparseLinear: SPARSE_OPERATION,
    Conv2d: CONV_OPERATION,
    Linear: DENSE_OPERATION,
    ImageLayer: IMAGE_OPERATION,
}
"""A named kernel is of the first of these operations that the network has layers of."""


def operation_of(layer: Any) -> str:
    """Return the operation whose kernels run a layer."""
    for kind, operation in _OPERATION_OF.items():
        if isinstance(connected_layer(layer), kind):
            return operation
    raise UsageError(f"nothing runs the layer {type(layer).__name__}")


def choose_kernels(network: Network, options: Options) -> tuple[Backend, Kernels]:
    """Return the backend, and the kernels that may run a network on it; errors are those of `Session`."""
    try:
        return _chosen(network, options)
    except UsageError as error:
        if options.precision != DOUBLE_PRECISION or not network.needs_float64:
            raise
        raise UsageError(
            f"{error}; float32 rounds away too much of this network's outputs, which makes {DOUBLE_PRECISION} the "
            f"default: precision {PRECISIONS[0]} computes it all the same"
        ) from error


def _chosen(network: Network, options: Options) -> tuple[Backend, Kernels]:
    device, kernel, precision = options.device, options.kernel, options.precision
    if precision == DOUBLE_PRECISION:
        device, precision = _double_device(network, options)
    foreign = next((layer for layer in network if isinstance(layer, ForeignLayer)), None)
    if foreign is not None and options.reproducible:
        raise UsageError(
            f"ONNX Runtime computes {', '.join(foreign.operators)}, and promises no bits for other numbers of rows: "
            "leave out reproducible"
        )
    rounds = precision in ("tf32", "float16")
    present = set(map(operation_of, network)) - {IMAGE_OPERATION}
    operations = [operation for operation in _OPERATION_OF.values() if operation in present]
    if not operations and rounds:
        raise UsageError(f"no layer of this network multiplies anything; leave out precision {precision}")
    if not operations and kernel != "auto":
        raise UsageError(f"no layer of this network has kernels to choose from; leave out kernel {kernel!r}")
    machine = machine_named(options.machine) if isinstance(options.machine, str) else options.machine
    backend = select_backend(device, kernel, next(iter(operations), None), machine)
    converts = SPARSE_OPERATION in present and multiplies_zeros(options, backend)
    converted = [DENSE_OPERATION] if converts and DENSE_OPERATION not in present else []
    chosen: Kernels = dict.fromkeys((SPARSE_OPERATION, DENSE_OPERATION, CONV_OPERATION), ())
    for operation in operations + converted:
        name, least = kernel if operation == operations[0] else "auto", precision
        if operation in (SPARSE_OPERATION, *converted):  # stay in float32 where no kernel has the precision
            named = name != "auto"
            there = [kernel_named(operation, name, backend.device)] if named else automatic(operation, backend.device)
            least = precision if any(entry.precision == precision for entry in there) else PRECISIONS[0]
        chosen[operation] = tuple(permitted_kernels(operation, backend.device, name, least, options.reproducible))
    has_precision = any(entry.precision == precision for entries in chosen.values() for entry in entries)
    if rounds and present == {SPARSE_OPERATION} and not has_precision:
        if kernel == "auto":
            raise UsageError(f"sparse layers are not multiplied in {precision} on {backend.device}; leave it out")
        raise UsageError(
            f"the kernel {kernel!r} multiplies sparse layers, in float32 only; leave out precision {precision}, or the "
            "kernel: sparse layers that hold enough weights are then multiplied as dense ones"
        )
    return backend, chosen


def multiplies_zeros(options: Options, backend: Backend) -> bool:
    """Whether sparse layers may be multiplied as dense ones."""
    return options.kernel == "auto" and not options.reproducible and not backend.doubles


def _double_device(network: Network, options: Options) -> tuple[str, str]:
    """Return the device that computes in float64, the CPU unless a GPU is asked for, and its kernels' precision."""
    device = options.device
    on_gpu = device == "cuda" or device.startswith("cuda:")
    if options.machine is not None or not (on_gpu or device in ("auto", "cpu", "reference")):
        asked = "a machine that is not here" if options.machine is not None else device
        raise UsageError(f"{asked} does not compute in {DOUBLE_PRECISION}; use device cpu or cuda")
    if not on_gpu:
        return "reference", PRECISIONS[0]
    images = [layer for layer in map(connected_layer, network) if isinstance(layer, ImageLayer)]
    lacking = [layer.name for layer in images if not isinstance(layer, ON_GPU)]
    if lacking:
        raise UsageError(f"GPUs do not compute {lacking[0]} in {DOUBLE_PRECISION}; use device cpu")
    return device.replace("cuda", DOUBLE_DEVICE, 1), DOUBLE_PRECISION


def able_kernels(
    candidates: Sequence[Any], layers: str, machine: Machine, *problem: Any
) -> tuple[tuple[Any, ...], dict[str, str]]:
    """Return the kernels that can run layers, and why the others cannot, by name; a `UsageError` if none can.

    `problem` is what `why_not` of these kernels takes after the machine.
    """
    reasons = {kernel: kernel.why_not(machine, *problem) for kernel in candidates}
    able = tuple(kernel for kernel, reason in reasons.items() if reason is None)
    refused = {kernel.name: reason for kernel, reason in reasons.items() if reason is not None}
    if not able:
        texts = (f"the kernel {name!r} cannot run {layers}: {reason}" for name, reason in refused.items())
        raise UsageError("; ".join(texts))
    return able, refused


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
        options = replace(options, check_finite=options.check_finite and not fills_gaps(network))
        start = time.perf_counter()
        backend, kernels = choose_kernels(network, options)
        compiled = compile_seconds()
        with span("find equal outputs", "plan"):
            merged = _merged_forms.get(network) if merges(options, backend) else unmerged(network)
            if merged is None:
                merged = _merged_forms[network] = merge_equal_outputs(without_dead_outputs(network))
        compiled = compile_seconds() - compiled
        limits, seconds = _limits(backend, options), time.perf_counter() - start
        return cls(network, options, backend, kernels, merged, *limits, seconds, compiled, in_order=in_order)

    def on(self, options: Options) -> CompiledNetwork:
        """Return the same network compiled for another device, or with other limits; its equal outputs are known."""
        backend, kernels = choose_kernels(self.network, options)
        rows, weights = _limits(backend, options)
        moved = replace(self, options=options, backend=backend, kernels=kernels, memory_limit=rows)
        moved = replace(moved, weight_memory=weights, seconds=0.0, compile_seconds=0.0, parts={})
        shares_choices = all(getattr(options, name) == getattr(self.options, name) for name in _CHOOSING)
        return moved if shares_choices else replace(moved, chosen={}, choices={})

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

    def whole_step(self, form: str) -> Step | None:
        """Return the step in which ONNX Runtime runs all layers; None where it may not, for rows of a form."""
        options = self.options
        permitted = self.network.onnx_graph is not None and self.measures and not self.in_order
        plain = form == "dense" and options.kernel == "auto" and options.precision == PRECISIONS[0]
        may_run = permitted and plain and self.backend.device == ONNX_RUNTIME.device and onnx_runtime_version()
        return Step(0, len(self.network), ONNX_RUNTIME) if may_run else None

    def choice_key(self, rows: int, form: str) -> dict[str, str | int]:
        """Return the key of a choice for a number and form of rows, in plain values: all that times depend on."""
        device, network = self.backend.device, self.merged.network
        libraries = ("numpy", "numba", *(["cupy"] if device.startswith("cuda") else []))
        versions = {"sparsenn": package_version()}
        versions |= {name: sys.modules[name].__version__ for name in libraries if name in sys.modules}
        if self.whole_step(form) is not None:
            versions["onnxruntime"] = onnx_runtime_version()
        layers = [(node.sources, layer_key(network, number)) for number, node in enumerate(network.nodes)]
        return {
            "device": f"{device}: {self.backend.machine.name}",
            "versions": ", ".join(f"{name} {each}" for name, each in versions.items()),
            "sources": _sources_digest(),
            "network": blake2b(repr(layers).encode(), digest_size=16).hexdigest(),
            "kernel": self.options.kernel,
            "precision": self.options.precision,
            "rows": bucket_of_choice(rows),
            "form": form,
            "in_order": int(self.in_order),
        }

    def stored_choice(self, rows: int, form: str) -> Choice | None:
        """Return the choice that was measured for a number and form of rows, if one is stored."""
        return choice_of((choices.read(self.choice_key(rows, form)) or {}).get("choices"))

    @cached_property
    def overflow_guard(self) -> OverflowGuard:
        """The guard of numbers in half precision, where kernels multiply in it."""
        return OverflowGuard(self.merged.network, self.backend)

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


_merged_forms: WeakKeyDictionary[Network, Merged] = WeakKeyDictionary()
"""Networks without dead outputs, and with equal ones merged: `infer` may be called with one again and again."""


def merges(options: Options, backend: Backend) -> bool:
    """Whether equal outputs are merged."""
    return not backend.doubles if options.merging is None else options.merging


def _limits(backend: Backend, options: Options) -> tuple[int, int]:
    """Return the bytes that rows in flight may take, and those that prepared weights may."""
    free = backend.free_memory()
    limit = options.memory_limit or max(LEAST_DEFAULT_BYTES, free // 2)
    least = LEAST_DEFAULT_BYTES if backend.in_host_memory else 1
    return limit, options.weight_memory or max(least, free // 2)


def layer_key(network: Network, number: int) -> tuple[Any, ...]:
    """Return what the time of a layer depends on, but for rows: sizes, and a sample of where sparse weights are."""
    layer = connected_layer(network[number])
    key: tuple[Any, ...] = type(layer).__name__, positions_of(network[number]), network.shapes[number + 1]
    if isinstance(layer, SparseLinear):
        key += layer.edges, _sample_of(layer)
    if isinstance(layer, ForeignLayer):
        key += (blake2b(layer.model, digest_size=16).digest(),)
    if isinstance(layer, Conv2d):
        shift = max(0, layer.nonzeros.bit_length() - LEADING_BITS)
        key += layer.weights.shape, layer.sliding_window, layer.groups, layer.nonzeros >> shift << shift
    return *key, network.input_shapes(number), type(getattr(layer, "activation", None)).__name__


def _sample_of(layer: SparseLinear) -> bytes:
    """Return a digest of where some of the weights are, found once: `infer` may be called again and again."""
    if layer not in _samples:
        indices = layer.weights.indices
        sample = np.ascontiguousarray(indices[:: max(1, indices.size // SAMPLED_INDICES)], np.int64)
        _samples[layer] = blake2b(sample.tobytes(), digest_size=16).digest()
    return _samples[layer]


_samples: WeakKeyDictionary[SparseLinear, bytes] = WeakKeyDictionary()


@lru_cache(maxsize=1)
def _sources_digest() -> str:
    """Return a digest of the sources of all kernels, and of the code that launches them."""
    digest = blake2b(digest_size=16)
    for path in sorted(Path(str(files("sparsenn.backends"))).rglob("*")):
        if path.suffix in (".py", ".cu", ".cuh"):
            digest.update(path.read_bytes())
    return digest.hexdigest()
