"""What callers run networks with, besides a `Session`."""

from __future__ import annotations

import warnings
from typing import Any

from sparsenn.engine.inputs import Inputs
from sparsenn.engine.options import Options
from sparsenn.engine.plan import Plan, Problem
from sparsenn.engine.result import Result
from sparsenn.engine.session import Session
from sparsenn.errors import ShapeError, UsageError
from sparsenn.formats.arrays import size
from sparsenn.network import Network
from sparsenn.progress import Progress, silent

__all__ = ["Predictor", "execute", "infer", "plan", "plan_rows"]


def plan(network: Network, inputs: Inputs, **options: Any) -> Plan:
    """Decide how a network is run on some inputs, and run nothing.

    Parameters
    ----------
    network : the layers.
    inputs : as `Session` takes them.
    options : those of `Session`.

    Raises
    ------
    SparseNNError
        As `Session` and `Session.plan` do.
    """
    return Session(network, **options).plan(inputs)


def plan_rows(network: Network, rows: int, **options: Any) -> Plan:
    """Decide how a network is run on so many dense rows that are not there, and run nothing.

    Parameters
    ----------
    network : the layers.
    rows : at least 1.
    options : those of `Session`.

    Raises
    ------
    UsageError
        `rows` is no whole number of at least 1.
    SparseNNError
        As `Session` does.
    """
    return Problem.of(network, Options.of(options)).plan(size(rows, "rows"), None, "dense")


def infer(
    network: Network, inputs: Inputs, *, statistics: bool = True, progress: Progress = silent, **options: Any
) -> Result:
    """Run a network on some inputs, once: a `Session` that is made for one call of its `run`.

    Parameters
    ----------
    network : the layers.
    inputs : as `Session` takes them.
    statistics, progress : as `Session.run` takes them.
    options : those of `Session`.

    Raises
    ------
    SparseNNError
        As `Session` and `Session.run` do.
    """
    return Session(network, **options).run(inputs, statistics=statistics, progress=progress)


def execute(plan: Plan, inputs: Inputs, progress: Progress = silent) -> Result:
    """Run a plan. Deprecated: make a `Session` and call its `run`, which keeps what it makes ready.

    Parameters
    ----------
    plan : made by `sparsenn.plan` for inputs of this shape.
    inputs : as `Session` takes them.
    progress : told of layers done.

    Raises
    ------
    UsageError
        The plan is no `Plan`.
    ShapeError
        The inputs are not those the plan was made for.
    SparseNNError
        As `Session.run` does.
    """
    if not isinstance(plan, Plan):
        raise UsageError(f"the plan is a {type(plan).__name__}; what is executed is what sparsenn.plan returns")
    warnings.warn("execute is deprecated: use sparsenn.Session and its run", DeprecationWarning, stacklevel=2)
    result = Session.of_plan(plan).run(inputs, progress=progress)
    if result.inputs != plan.inputs:
        given = result.inputs, plan.network.inputs
        raise ShapeError(f"the plan is for inputs of shape {(plan.inputs, plan.network.inputs)}, not {given}")
    return result


class Predictor(Session):
    """A session under its former name. Deprecated: use `Session`."""

    def __init__(self, network: Network, **options: Any) -> None:
        warnings.warn("Predictor is deprecated: use sparsenn.Session", DeprecationWarning, stacklevel=2)
        super().__init__(network, **options)
