"""Sessions whose backend or kernels are others than a user gets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from sparsenn.backends import Backend
from sparsenn.engine import Plan, Session
from sparsenn.engine.plan import plan_for
from sparsenn.formats import CSR
from sparsenn.network import Network

__all__ = ["SWITCHES", "altered", "doing_first", "parts", "same", "steps_of", "unchanged"]

SWITCHES = [
    dict(zip(("compaction", "deduplication", "merging"), flags, strict=True))
    for flags in product((True, False), repeat=3)
]


def unchanged(kernel: Any) -> Any:
    return kernel


def doing_first(action: Callable[[Any], object]) -> Callable[[Any], Any]:
    """Return what makes of a kernel one that does something with what it is launched on before it computes."""

    def change(kernel: Any) -> Any:
        def launch(step: Any) -> Any:
            action(step)
            return kernel.launch(step)

        return replace(kernel, launch=launch)

    return change


def altered(
    network: Network, *, backend: Backend | None = None, change: Callable[[Any], Any] = unchanged, **options: Any
) -> Session:
    """Return a session on another backend, or with other kernels.

    Parameters
    ----------
    backend : in place of the one that the options name.
    change : returns what runs in place of a kernel that may run layers.
    options : of the session.
    """
    problem = Session(network, **options).plan(np.zeros((0, network.inputs), np.float32)).compiled

    kernels = {operation: tuple(map(change, found)) for operation, found in problem.kernels.items()}
    problem = replace(problem, backend=backend or problem.backend, kernels=kernels)
    return Session.of_plan(plan_for(problem, 0, None, "dense"))


def parts(rows: CSR) -> list[bytes]:
    """Return the bytes of CSR, entry by entry."""
    return [array.tobytes() for array in (rows.indptr, rows.indices, rows.expanded_values())]


def same(one: CSR, other: CSR) -> bool:
    """Whether two results have the same bits."""
    return parts(one) == parts(other)


def steps_of(plan: Plan) -> tuple[tuple[int, int], ...]:
    """Return the layers of a plan's steps, counted from 0, ends excluded."""
    return tuple((step.first, step.last) for step in plan.steps)
