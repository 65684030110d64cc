"""Plans without a session of the caller's own."""

from __future__ import annotations

from typing import Unpack

from sparsenn.engine.compiled_network import CompiledNetwork
from sparsenn.engine.inputs import Inputs
from sparsenn.engine.options import NamedOptions, read_options
from sparsenn.engine.plan import Plan, plan_for
from sparsenn.engine.session import Session
from sparsenn.formats.arrays import size
from sparsenn.io.networks import NetworkSource
from sparsenn.network import Network

__all__ = ["plan", "plan_rows"]


def plan(network: NetworkSource, inputs: Inputs, **options: Unpack[NamedOptions]) -> Plan:
    """Decide how a network is run on some inputs; kernels may be timed on them.

    Parameters
    ----------
    network : Network, or a model in another form
        As `Session` takes it.
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


def plan_rows(network: Network, rows: int, **options: Unpack[NamedOptions]) -> Plan:
    """Decide how a network is run on dense rows of which only the number is known; errors are those of `plan`."""
    return plan_for(CompiledNetwork.of(network, read_options(options)), size(rows, "rows"), None, "dense")
