"""What a plan makes of each layer: how sparse it is, what need not be computed, its kernel and the estimate."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any, NamedTuple

from rich.table import Column, Table
from rich.text import Text

from sparsenn.engine import Plan
from sparsenn.layers import SparseLinear, connected_layer
from sparsenn.layers.pruning import nonzeros
from sparsenn.network import Layer
from sparsenn.report.architecture import layer_title, shape_text
from sparsenn.report.fitting import FittedTable, numbers
from sparsenn.report.quantities import count, duration, percentage


class PlannedLayer(NamedTuple):
    """A layer as a plan runs it.

    layer : counted from 1.
    what : the layer in a few words.
    shape : of one output of it.
    density : the share of its weights that are not zero; None where it has none.
    left_out : the share of its outputs that are not computed: equal to others, or read by nothing.
    kernel : what runs it.
    step : counted from 1; the layers of a step run together.
    estimate : seconds of the whole step, for one batch; None where nothing estimates it.
    """

    layer: int
    what: str
    shape: tuple[int, ...]
    density: float | None
    left_out: float
    kernel: str
    step: int
    estimate: float | None


def planned_layers(plan: Plan) -> list[PlannedLayer]:
    """Return the layers of a plan, in their order."""
    network, computed = plan.network, plan.merged.network.sizes
    return [
        PlannedLayer(
            index + 1,
            _kind(network[index]),
            network.shapes[index + 1],
            density(network[index]),
            1 - computed[index + 1] / network.sizes[index + 1] if network.sizes[index + 1] else 0.0,
            step.kernel.name,
            number,
            step.seconds,
        )
        for number, step in enumerate(plan.steps, start=1)
        for index in step.layers
    ]


def density(layer: Layer) -> float | None:
    """Return the share of a layer's weights that are not zero; None where it has none."""
    layer = connected_layer(layer)
    places = layer.inputs * layer.outputs if isinstance(layer, SparseLinear) else layer.edges
    return nonzeros(layer) / places if places else None


def _kind(layer: Any) -> str:
    return "sparse" if isinstance(layer, SparseLinear) else layer_title(layer).replace("convolution", "conv")


def plan_table(plan: Plan) -> Table:
    """Return the table by layer; neighbours in a step that look the same share a line.

    A step's time is in the line of its first layer, as the layers of a step run together.
    """
    batches = "" if len(plan.batches) == 1 else f", {count(plan.batch_size)} at a time"
    title = f"planned for {count(plan.inputs)} rows{batches}, on {plan.device}"
    measured = {step.is_measured for step in plan.steps}
    time = "partly measured" if len(measured) > 1 else "measured" if True in measured else "estimate"
    kernel = Column("kernel", overflow="fold")
    sizes = numbers("outputs", "density", "left out")
    table = FittedTable(*numbers("layer"), "what", *sizes, kernel, *numbers(time), title=Text(title))
    for cells in _lines(planned_layers(plan)):
        table.add_row(*map(Text, cells))
    if plan.estimate is not None:
        table.add_section()
        table.add_row("all", "", "", "", "", "", duration(plan.estimate))
    return table


def _lines(layers: Iterable[PlannedLayer]) -> Iterator[tuple[str, ...]]:
    shown = 0  # the last step whose estimate was shown
    for (*cells, step, estimate), alike in groupby(layers, _cells):
        members = list(alike)
        first, last = members[0].layer, members[-1].layer
        span = str(first) if first == last else f"{first}–{last}"
        yield span, *cells, ("–" if estimate is None else duration(estimate)) if step != shown else ""
        shown = step


def _cells(layer: PlannedLayer) -> tuple[Any, ...]:
    share = "–" if layer.density is None else percentage(layer.density, 1)
    left_out = percentage(layer.left_out, 1) if layer.left_out else "–"
    return layer.what, shape_text(layer.shape), share, left_out, layer.kernel, layer.step, layer.estimate


def plan_record(model: str, plan: Plan) -> dict[str, Any]:
    """Return a plan for a model as a dictionary, for `to_json`.

    The keys are model, rows, device, plan (as `Plan.to_dict` has it), estimate (seconds of all steps for one batch;
    None where one of them is not known) and per_layer (the fields of `PlannedLayer`), in this order.
    """
    return {
        "model": model,
        "rows": plan.inputs,
        "device": plan.device,
        "plan": plan.to_dict(),
        "estimate": plan.estimate,
        "per_layer": [layer._asdict() for layer in planned_layers(plan)],
    }
