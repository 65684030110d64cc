"""What callers run networks with, besides a `Session`."""

from __future__ import annotations

import warnings
from typing import Unpack

from sparsenn.engine.compiled_network import CompiledNetwork
from sparsenn.engine.inputs import Inputs
from sparsenn.engine.named_options import NamedOptions, names_options
from sparsenn.engine.options import Options
from sparsenn.engine.plan import Plan
from sparsenn.engine.result import Result
from sparsenn.engine.session import Session
from sparsenn.errors import ShapeError, UsageError
from sparsenn.formats.arrays import size
from sparsenn.network import Network
from sparsenn.printable import kind_of
from sparsenn.progress import Progress, silent

__all__ = ["Predictor", "execute", "plan", "plan_rows"]


@names_options
def plan(network: Network, inputs: Inputs, **options: Unpack[NamedOptions]) -> Plan:
    """Decide how a network is run on some inputs, and run nothing.

    Parameters
    ----------
    network : Network
        The layers.
    inputs : array_like, CSR, sparse or dense array of any library
        As `Session` takes them: of shape (samples, network.inputs).
    **options : Options
        As `Session` takes them.

    Returns
    -------
    Plan
        What `str` says in words, and `to_dict` in plain values.

    Raises
    ------
    SparseNNError
        As `Session` and `Session.plan` do.
    """
    return Session(network, **options).plan(inputs)


@names_options
def plan_rows(network: Network, rows: int, **options: Unpack[NamedOptions]) -> Plan:
    """Decide how a network is run on so many dense rows that are not there, and run nothing.

    Parameters
    ----------
    network : Network
        The layers.
    rows : int
        Number of rows, at least 1.
    **options : Options
        As `Session` takes them.

    Returns
    -------
    Plan
        What `str` says in words, and `to_dict` in plain values.

    Raises
    ------
    UsageError
        `rows` is no whole number of at least 1.
    SparseNNError
        As `Session` does.
    """
    return CompiledNetwork.of(network, Options.of(options)).plan(size(rows, "rows"), None, "dense")


def execute(plan: Plan, inputs: Inputs, progress: Progress = silent) -> Result:
    """Run a plan. Deprecated: make a `Session` and call its `run`, which keeps what it makes ready.

    Parameters
    ----------
    plan : Plan
        Made by `sparsenn.plan` for inputs of this shape.
    inputs : array_like, CSR, sparse or dense array of any library
        As `Session` takes them.
    progress : callable, optional
        Told of layers done: `progress(task, done, total)`.

    Returns
    -------
    Result
        As `Session.run` returns it.

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
        raise UsageError(f"the plan is {kind_of(plan)}; give what sparsenn.plan returns")
    warnings.warn("execute is deprecated: use sparsenn.Session and its run", DeprecationWarning, stacklevel=2)
    result = Session.of_plan(plan).run(inputs, progress=progress)
    if result.inputs != plan.inputs:
        given = result.inputs, plan.network.inputs
        raise ShapeError(f"the plan is for inputs of shape {(plan.inputs, plan.network.inputs)}, not {given}")
    return result


@names_options
class Predictor(Session):
    """A session under its former name. Deprecated: use `Session`.

    Parameters
    ----------
    network : Network
        The layers.
    **options : Options
        As `Session` takes them.
    """

    def __init__(self, network: Network, **options: Unpack[NamedOptions]) -> None:
        warnings.warn("Predictor is deprecated: use sparsenn.Session", DeprecationWarning, stacklevel=2)
        super().__init__(network, **options)
