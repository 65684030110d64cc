"""Counts and times by layer, over all batches of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from sparsenn.backends import LayerCounts
from sparsenn.engine.result import LayerStatistics
from sparsenn.network import Network

__all__ = ["LayerCounter"]

Number = TypeVar("Number", int, float)


@dataclass
class _Layer:
    """Sums of one layer, as `LayerStatistics` has them."""

    kernel: str = ""
    rows: int = 0
    active_rows: int | None = 0
    nonzeros: int | None = 0
    performed_edges: int = 0
    distinct_rows: int | None = None
    seconds: float = 0.0
    estimate: float | None = 0.0


def _sum_known(one: Number | None, other: Number | None) -> Number | None:
    """Add two numbers; what is not known stays so."""
    return None if one is None or other is None else one + other


@dataclass
class LayerCounter:
    """Counts and seconds by layer. `of` begins one for a network."""

    layers: list[_Layer] = field(default_factory=list)

    @classmethod
    def of(cls, network: Network) -> LayerCounter:
        """Begin to count."""
        return cls([_Layer() for _ in network])

    def add(self, first: int, counts: Sequence[LayerCounts], seconds: Sequence[float], estimate: float | None) -> None:
        """Add what one step counted.

        Parameters
        ----------
        first : the step's first layer, counted from 0.
        counts, seconds : of each of its layers.
        estimate : seconds that the step was estimated to take; its layers share it as they share the seconds.
        """
        whole = sum(seconds)
        for layer, found, taken in zip(self.layers[first : first + len(counts)], counts, seconds, strict=True):
            layer.kernel = layer.kernel or found.kernel
            layer.rows += found.rows
            layer.active_rows = _sum_known(layer.active_rows, found.active_inputs)
            layer.nonzeros = _sum_known(layer.nonzeros, found.nonzeros)
            layer.performed_edges += found.performed_edges
            if found.distinct is not None:
                layer.distinct_rows = (layer.distinct_rows or 0) + found.distinct
            layer.seconds += taken
            share = None if estimate is None else estimate * (taken / whole if whole else 1 / len(counts))
            layer.estimate = _sum_known(layer.estimate, share)

    def join(self, other: LayerCounter) -> None:
        """Add what another counter of the same network has."""
        for number, layer in enumerate(other.layers):
            counted = layer.rows, layer.active_rows, layer.nonzeros, layer.performed_edges
            counts = LayerCounts(layer.kernel, *counted, layer.distinct_rows)
            self.add(number, (counts,), (layer.seconds,), layer.estimate)

    def scale(self, first: int, last: int, seconds: float) -> None:
        """Scale what was timed of some layers to the seconds that they took together: threads ran them side by side."""
        layers = self.layers[first:last]
        whole = sum(layer.seconds for layer in layers)
        for layer in layers:
            layer.seconds *= seconds / whole if whole else 0.0

    def statistics(self, network: Network) -> tuple[LayerStatistics, ...]:
        """Return what was counted, one record a layer."""
        return tuple(
            LayerStatistics(number, density=_density(layer, outputs), **vars(layer))
            for number, (outputs, layer) in enumerate(zip(network.sizes[1:], self.layers, strict=True), start=1)
        )


def _density(layer: _Layer, outputs: int) -> float | None:
    if layer.nonzeros is None or layer.active_rows is None:
        return None
    return layer.nonzeros / (layer.active_rows * outputs) if layer.active_rows else 0.0
