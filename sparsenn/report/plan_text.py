"""A plan in words."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import groupby

from sparsenn.backends import SparseKernel
from sparsenn.backends.kernel_records import CONV_OPERATION, IMAGE_OPERATION, WHOLE_OPERATION
from sparsenn.backends.registry import LAYERS_OF
from sparsenn.engine import Plan
from sparsenn.engine.compiled_network import merges
from sparsenn.engine.steps import WHOLE, Step, bucket_of_choice
from sparsenn.layers import Conv2d, ForeignLayer, ImageLayer, SparseLinear, connected_layer
from sparsenn.report.quantities import duration
from sparsenn.runtime.memory import shown_bytes


def plan_text(plan: Plan) -> str:
    """Return a plan as a few sentences."""
    sentences = [_compiled(plan), *_kernels(plan), _whole(plan), _foreign(plan), _merging(plan), _weights(plan)]
    sentences += [_rows(plan), _precisions(plan)]
    if plan.options.reproducible:
        sentences.append("Reproducible: a sample's outputs do not depend on other samples, memory or threads.")
    return " ".join(filter(None, sentences))


def _compiled(plan: Plan) -> str:
    count = len(plan.batches)
    batches = "in one batch" if count == 1 else f"in {count} batches of up to {plan.batch_size:,}"
    network = plan.network
    layers = f"{len(network)} layer{'s' if len(network) > 1 else ''} with {network.edges:,}"
    images = any(layer.family is ImageLayer for layer in network)
    size = f"weights and {network.multiply_adds:,} multiply-adds per sample" if images else "edges"
    dense = "as dense rows" if plan.density is None else f"{100 * plan.density:.1f} % dense"
    return f"{plan.inputs:,} samples ({dense}) through {layers} {size} on {plan.device}, {batches}."


def _foreign(plan: Plan) -> str | None:
    if plan.kernel.operation == WHOLE_OPERATION:
        return None
    numbered = enumerate(plan.merged.network, start=1)
    layers = [f"{at} ({', '.join(layer.operators)})" for at, layer in numbered if isinstance(layer, ForeignLayer)]
    return f"ONNX Runtime computes layers {', '.join(layers)} on the CPU, in float32." if layers else None


def _whole(plan: Plan) -> str | None:
    whole = plan.compiled.choices.get((bucket_of_choice(plan.inputs), plan.rows.form), {}).get(WHOLE)
    if whole is None or plan.kernel.operation == WHOLE_OPERATION or not whole.others:
        return None
    (_, seconds), *_ = whole.others
    return (
        f"All layers are measured to take {duration(whole.seconds)}; ONNX Runtime, for the whole network, "
        f"{duration(seconds)}."
    )


def _kernels(plan: Plan) -> list[str]:
    """Say which kernel each layer gets, and why: in one sentence for layers that share both."""
    shared, others = defaultdict[tuple[str, str, str], list[Step]](list), defaultdict[str, list[str]](list)
    for step in plan.steps:
        kernel = step.kernel
        if kernel.operation != IMAGE_OPERATION:
            rounding = "" if kernel.precision == "float32" else f"; factors are rounded to {kernel.precision}"
            text = f"kernel {kernel.name}: {kernel.summary}{rounding}"
            shared[_title(plan, step), text, step.reason].append(step)
        elif kernel.name != ForeignLayer.name:
            others[kernel.name] += [str(number + 1) for number in step.layers]
    sentences = []
    for (name, text, reason), steps in shared.items():
        layers = _ranges([number for step in steps for number in step.layers])
        alone = len(shared) == 1 and not others
        what = text[0].upper() + text[1:] if alone else f"{name} ({layers}): {text}"
        known = [step.seconds for step in steps if step.seconds is not None]
        measured = "measured" if all(step.is_measured for step in steps) else "estimated"
        estimate = f"{measured} to take {duration(sum(known))}" if len(known) == len(steps) else ""
        sentences.append(f"{'; '.join(filter(None, (what, reason, estimate)))}.")
    if others:
        layers = ", ".join(f"{name} ({', '.join(numbers)})" for name, numbers in others.items())
        sentences.append(f"The device's own functions: {layers}.")
    return sentences


def _title(plan: Plan, step: Step) -> str:
    layers = plan.network.layers[step.first : step.last]
    if isinstance(connected_layer(layers[0]), SparseLinear):
        return "Sparse layers"
    fused = step.kernel.operation == CONV_OPERATION and any(not isinstance(layer, Conv2d) for layer in layers)
    return "Convolutions and pooling" if fused else LAYERS_OF[step.kernel.operation].capitalize()


def _merging(plan: Plan) -> str:
    sparse = [isinstance(layer, SparseLinear) for layer in plan.network]
    if not any(sparse):
        return ""
    if not merges(plan.options, plan.backend):
        return "Equal outputs are not merged."
    neurons = sum(plan.network.sizes[1:])
    computed = sum(plan.merged.network.sizes[1:])
    if computed == neurons:
        which = "no layer"
        if not all(sparse):
            images = any(layer.family is ImageLayer for layer in plan.network)
            reader = "layer of another kind" if images else "dense layer"
            which = f"of the sparse layers that no {reader} reads, none"
        return f"Nothing to merge: {which} has equal or dead outputs."
    edges = plan.merged.network.edges
    return (
        f"Outputs equal up to a power of two are merged and dead ones left out: {computed:,} of {neurons:,} neurons "
        f"and {edges:,} of {plan.network.edges:,} edges remain."
    )


def _weights(plan: Plan) -> str:
    if not plan.streams:
        return ""
    how = "each while the previous one is computed" if plan.backend.prepares_ahead else "one after the other"
    parts = f" in {len(plan.steps):,} parts, {how}" if len(plan.steps) > 1 else ""
    limit = shown_bytes(plan.compiled.weight_memory)
    return (
        f"Weights are prepared{parts}, again for each batch, as they take more than the weight memory of {limit}; "
        f"estimated to take {duration(plan.preparing)} a batch."
    )


def _rows(plan: Plan) -> str:
    kernels = [step.kernel for step in plan.steps if isinstance(step.kernel, SparseKernel)]
    if not kernels:
        return ""
    drop, find_equal = any(kernel.drops_rows for kernel in kernels), any(kernel.finds_equal_rows for kernel in kernels)
    if not (drop or find_equal):
        return "All rows are computed in every layer."
    if not (plan.options.compaction and drop):
        dead = "kept"
    elif not plan.network[-1].keeps_zero_rows:
        dead = "kept, because the last layer may make them non-zero"
    elif plan.droppable_from == 0:
        dead = "dropped from the first layer on"
    else:
        dead = f"dropped only after layer {plan.droppable_from + 1}, the last one that may make them non-zero"
    equal = "computed once" if plan.options.deduplication and find_equal else "not looked for"
    where = "" if len(plan.steps) == 1 else " in sparse layers"
    return f"Rows of zeros are {dead}; equal rows are {equal}{where}."


def _precisions(plan: Plan) -> str:
    asked = plan.options.precision
    if asked == "float32":
        return ""
    used = {each: [at for at, used in enumerate(plan.precisions) if used == each] for each in (asked, "float32")}
    clauses = [f"in {each}: {_ranges(at) or 'none'}" for each, at in used.items() if at or each == asked]
    why = ", because float32 rounds away too much of this network's outputs"
    needed = asked == "float64" and plan.network.needs_float64
    return f"Layers multiplied {'; '.join(clauses)}{why if needed else ''}."


def _ranges(layers: Sequence[int]) -> str:
    """Return ascending numbers of layers, counted from 0, as ranges of numbers counted from 1."""
    groups = [[number for _, number in group] for _, group in groupby(enumerate(layers), lambda at: at[1] - at[0])]
    return ", ".join(f"{one[0] + 1}" if len(one) == 1 else f"{one[0] + 1}–{one[-1] + 1}" for one in groups)
