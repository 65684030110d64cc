"""The counter of a run: counts and times of its layers, over all batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sparsenn.backends import LayerCounts
from sparsenn.engine.result import LayerStatistics
from sparsenn.network import Network

__all__ = ["LayerCounter"]

NOTHING = LayerCounts("", 0, 0, 0, 0)


@dataclass
class _Layer:
    counts: LayerCounts = NOTHING
    seconds: float = 0.0
    estimate: float | None = 0.0


@dataclass
class LayerCounter:
    """Counts and seconds by layer."""

    layers: list[_Layer] = field(default_factory=list)

    @classmethod
    def of(cls, network: Network) -> LayerCounter:
        """Return a counter for a network, at zero."""
        return cls([_Layer() for _ in network])

    def add(self, first: int, counts: Sequence[LayerCounts], seconds: Sequence[float], estimate: float | None) -> None:
        """Add the counts of one step; its layers share its estimate as they share its seconds."""
        whole = sum(seconds)
        for layer, added, time in zip(self.layers[first : first + len(counts)], counts, seconds, strict=True):
            layer.counts = layer.counts.plus(added)
            layer.seconds += time
            share = None if estimate is None else estimate * (time / whole if whole else 1 / len(counts))
            layer.estimate = None if share is None or layer.estimate is None else layer.estimate + share

    def add_all(self, other: LayerCounter) -> None:
        """Add the counts of another counter of the same network."""
        for number, layer in enumerate(other.layers):
            self.add(number, (layer.counts,), (layer.seconds,), layer.estimate)

    def scale(self, first: int, last: int, seconds: float) -> None:
        """Scale the times of layers that threads ran side by side to the seconds that they took together."""
        layers = self.layers[first:last]
        whole = sum(layer.seconds for layer in layers)
        for layer in layers:
            layer.seconds *= seconds / whole if whole else 0.0

    def statistics(self, network: Network) -> tuple[LayerStatistics, ...]:
        """Return one record per layer."""
        return tuple(
            LayerStatistics(
                layer=number,
                kernel=layer.counts.kernel,
                rows=layer.counts.rows,
                active_rows=layer.counts.active_inputs,
                distinct_rows=layer.counts.distinct,
                nonzeros=layer.counts.nonzeros,
                density=_density(layer.counts, outputs),
                performed_edges=layer.counts.performed_edges,
                seconds=layer.seconds,
                estimate=layer.estimate,
            )
            for number, (outputs, layer) in enumerate(zip(network.sizes[1:], self.layers, strict=True), start=1)
        )


def _density(counts: LayerCounts, outputs: int) -> float | None:
    if counts.nonzeros is None or counts.active_inputs is None:
        return None
    return counts.nonzeros / (counts.active_inputs * outputs) if counts.active_inputs else 0.0
