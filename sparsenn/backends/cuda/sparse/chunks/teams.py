"""Teams: outputs of a layer that read the same inputs, each of which `gather_chunks` reads once for all of them.

Networks whose weights were pruned by blocks have such outputs, as have those made of Kronecker products.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sparsenn.backends.cuda.runtime.layer_cache import cache_on_host
from sparsenn.formats import CSC, Array
from sparsenn.formats.equality import equal_patterns
from sparsenn.layers import SparseLinear

__all__ = ["NEIGHBOURS", "TEAM", "Teams", "TeamsSize", "teams_of", "teams_of_weights"]

TEAM = 16
"""Outputs of a team, at most: those of a warp."""

NEIGHBOURS = 15
"""Teams of a block, for estimates."""

LEAST_SHARED = 4
"""Outputs for each list of inputs, on average, for which teams are looked for; fewer gain little."""


class TeamsSize(NamedTuple):
    """How much there is for the teams of a layer to do.

    Parameters
    ----------
    teams : how many there are.
    reads : inputs that they read, each team for itself.
    lines, runs : inputs that blocks of `NEIGHBOURS` teams read, each block for itself, and the runs that they lie in.
    """

    teams: int
    reads: int
    lines: int
    runs: int


@dataclass(frozen=True, eq=False)
class Teams:
    """How the outputs of a layer are dealt to teams, which are ordered by the first input that they read.

    Parameters
    ----------
    place : (outputs,) int64, `TEAM` times the team of each output, and its place there.
    size : how many teams there are, and what they read.
    """

    place: Array
    size: TeamsSize


def teams_of(layer: SparseLinear) -> Teams | None:
    """Return the teams of a layer's outputs; None where too few outputs read the same inputs."""
    weights = layer.weights
    return cache_on_host(layer, "teams", lambda: teams_of_weights(weights) if _may_share(weights) else None)


def teams_of_weights(weights: CSC) -> Teams:
    """Return the teams of the outputs of weights on the host; an output that is like no other is a team by itself."""
    representative, pattern = equal_patterns(weights)
    first = _ends(weights)[0][representative][pattern]
    order = np.lexsort((pattern, first))
    ordered = pattern[order]
    begins = np.concatenate([[True], ordered[1:] != ordered[:-1]]) if ordered.size else np.zeros(0, bool)
    number = np.arange(ordered.size)
    rank = number - number[begins][np.cumsum(begins) - 1]
    team = np.cumsum(begins | (rank % TEAM == 0)) - 1
    place = np.empty(ordered.size, np.int64)
    place[order] = TEAM * team + rank % TEAM
    lead = order[np.concatenate([[True], team[1:] != team[:-1]])] if ordered.size else order
    return Teams(place, _size(weights, lead))


def _size(weights: CSC, lead: Array) -> TeamsSize:
    """Count what teams read that have the same inputs as the outputs `lead`."""
    degrees = np.diff(weights.indptr)[lead]
    reads = int(degrees.sum())
    if not reads:
        return TeamsSize(lead.size, 0, 0, 0)
    within = np.arange(reads) - np.repeat(np.cumsum(degrees) - degrees, degrees)
    inputs = weights.indices[np.repeat(weights.indptr[lead], degrees) + within]
    block = np.repeat(np.arange(lead.size) // NEIGHBOURS, degrees)
    lines = np.sort(block * (weights.shape[0] + 1) + inputs)  # blocks are not neighbours
    steps = np.diff(lines)
    return TeamsSize(lead.size, reads, *(1 + int(np.count_nonzero(steps > least)) for least in (0, 1)))


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
