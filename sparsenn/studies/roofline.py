"""Rooflines: what a device's memories and arithmetic allow each rung of a ladder, beside what it was measured to take.

A roofline (Williams, Waterman and Patterson, 2009, doi:10.1145/1498765.1498785) bounds the rate of a kernel by what it
moves and what it multiplies. Here each memory has its own roof, and a rung's prediction is the longest of the times
that memory, cache, shared memory and arithmetic take for it if they do nothing else, and all at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sparsenn.studies.ladder import ladder_for
from sparsenn.studies.measure import Roofs
from sparsenn.studies.run import LadderResult, RungResult
from sparsenn.studies.traffic import Traffic

# Bounds of a rung, besides the cache, with a name of its own, and arithmetic, named by its precision.
MEMORY = "memory"
SHARED = "shared memory"

MARGIN = 0.1
"""By how much of its prediction a rung has to be faster before its roof counts as too low."""


@dataclass(frozen=True)
class Prediction:
    """What a rung should take."""

    model: str  # of what it moves; `compulsory` where nothing is known of that but what any way must move
    bytes: int  # that it moves according to the model: what its blocks read and write, or what any way must
    source: str  # the memory that these bytes mostly come from: `memory`, or the cache by its name
    operations: int  # two for each multiply-add
    seconds: float  # that the roofs allow
    bound: str
    """What takes that long: `memory`, the cache by its name, `shared memory`, or the precision of the arithmetic."""

    @property
    def intensity(self) -> float:
        """Operations for each byte; 0 where nothing is moved."""
        return self.operations / self.bytes if self.bytes else 0.0


@dataclass(frozen=True)
class RooflineResult:
    """A ladder with its predictions."""

    ladder: LadderResult  # as it was measured
    roofs: Roofs  # of its device
    predictions: tuple[Prediction, ...]  # one a rung, in the ladder's order

    def rate(self, rung: RungResult) -> float | None:
        """Return the operations a second that a rung did; None if it was not timed."""
        return 2 * self.ladder.multiply_adds / rung.seconds if rung.seconds else None

    @property
    def beyond(self) -> tuple[str, ...]:
        """Names of the rungs that are faster than the measured rate of the arithmetic that bounds them.

        No cache explains that, as it does for bytes: the rate was measured too low, for example on a busy machine.
        """
        return tuple(
            rung.name
            for rung, prediction in zip(self.ladder.rungs, self.predictions, strict=True)
            if prediction.bound == _multiplied(rung)[0]
            and rung.seconds is not None
            and rung.seconds < (1 - MARGIN) * prediction.seconds
        )


def predict(traffic: Traffic, roofs: Roofs, precision: str = "float32", products: int = 1) -> Prediction:
    """Return what a device's roofs allow.

    What blocks read again comes from the cache where that holds what lies between two readings, else from memory,
    which in any case gives everything once. Blocks that are fewer than the processors leave some of these idle, which
    takes from the arithmetic only.
    """
    again = traffic.loaded > 0
    cached = again and traffic.between <= roofs.cache_bytes
    from_memory = traffic.compulsory if cached or not again else max(traffic.loaded, traffic.compulsory)
    busy = min(1.0, traffic.blocks / roofs.processors) if traffic.blocks else 1.0
    arithmetic = precision if precision in roofs.multiply_adds else "float32"
    seconds = {
        MEMORY: from_memory / roofs.copy_bandwidth,
        roofs.cache: traffic.loaded / roofs.cache_bandwidth,
        SHARED: traffic.shared / roofs.shared_bandwidth if roofs.shared_bandwidth else 0.0,
        arithmetic: products * traffic.multiply_adds / (roofs.multiply_adds[arithmetic] * busy),
    }
    bound = max(seconds, key=lambda name: seconds[name])
    return Prediction(
        model=traffic.model,
        bytes=traffic.loaded or traffic.compulsory,
        source=roofs.cache if cached else MEMORY,
        operations=2 * traffic.multiply_adds,
        seconds=seconds[bound],
        bound=bound,
    )


def roofline(ladder: LadderResult, problem: tuple[Any, Any], device: str, roofs: Roofs) -> RooflineResult:
    """Return a ladder's result with what its device's roofs allow each rung."""
    described = ladder_for(ladder.operation)
    given = described.modelled(*problem) if described.modelled else ()
    least = Traffic("compulsory", ladder.bytes, ladder.multiply_adds)
    models = {kernel.name: kernel.traffic for kernel in described.rungs.get(device, ())}

    def traffic(rung: RungResult) -> Traffic:
        model = models.get(rung.name)
        return least if model is None else model(*given)

    def prediction(rung: RungResult) -> Prediction:
        return predict(traffic(rung), roofs, *_multiplied(rung))

    predictions = tuple(map(prediction, ladder.rungs))
    return RooflineResult(ladder, roofs, predictions)


def _multiplied(rung: RungResult) -> tuple[str, int]:
    """Return the precision of a rung's multiplications, and how many it makes for each multiply-add."""
    return ("tf32", rung.tf32_products) if rung.tf32_products else (rung.precision, 1)
