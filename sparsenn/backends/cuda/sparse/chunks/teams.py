"""Teams: outputs of a layer that read the same inputs, each of which `gather_chunks` reads once for all of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparsenn.backends.cuda.runtime.layer_cache import cache_on_host
from sparsenn.formats import CSC, Array
from sparsenn.formats.equality import equal_patterns
from sparsenn.layers import SparseLinear

TEAM = 16  # outputs of a team, at most: those of a warp
LEAST_SHARED = 4  # outputs for each list of inputs, on average, from which on there are teams; fewer gain little


@dataclass(frozen=True, eq=False)
class Teams:
    """How the outputs of a layer are dealt to teams, which are ordered by the first input that they read."""

    place: Array  # (outputs,) int64, `TEAM` times the team of each output, and its place there
    count: int  # number of teams


def teams_of(layer: SparseLinear) -> Teams | None:
    """Return the teams of a layer's outputs; None where too few outputs read the same inputs."""
    weights = layer.weights
    return cache_on_host(layer, "teams", lambda: teams_of_weights(weights) if _may_share(weights) else None)


def teams_of_weights(weights: CSC) -> Teams:
    """Return the teams of the outputs of weights; an output that is like no other is a team by itself."""
    representative, pattern = equal_patterns(weights)
    first = _ends(weights)[0][representative][pattern]
    order = np.lexsort((pattern, first))
    ordered, number = pattern[order], np.arange(order.size)
    begins = np.diff(ordered, prepend=-1) != 0
    rank = number - np.maximum.accumulate(np.where(begins, number, 0))
    team = np.cumsum(begins | (rank % TEAM == 0)) - 1
    place = np.empty(order.size, np.int64)
    place[order] = TEAM * team + rank % TEAM
    return Teams(place, int(team[-1]) + 1 if team.size else 0)


def _ends(weights: CSC) -> tuple[Array, Array]:
    """Return the first and last input that each output reads, int64; the number of inputs where it reads none."""
    degrees, inputs = np.diff(weights.indptr), weights.shape[0]
    found = np.full((2, degrees.size), inputs, np.int64)
    some = degrees > 0
    found[0, some] = weights.indices[weights.indptr[:-1][some]]
    found[1, some] = weights.indices[weights.indptr[1:][some] - 1]
    return found[0], found[1]


def _may_share(weights: CSC) -> bool:
    """Whether enough outputs begin and end with the same inputs, and have as many."""
    first, last = _ends(weights)
    keys = np.stack([first * (weights.shape[0] + 1) + last, np.diff(weights.indptr)])
    keys = keys[:, np.lexsort(keys)]
    different = 1 + np.count_nonzero((keys[:, 1:] != keys[:, :-1]).any(axis=0))
    return LEAST_SHARED * int(different) <= first.size
