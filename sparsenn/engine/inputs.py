"""What the engine is given to compute: a network, and its inputs in any of the forms that a caller may have them in."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from sparsenn.errors import InputError, ShapeError, UsageError
from sparsenn.formats import CSR, Array, from_dense
from sparsenn.network import Network

__all__ = ["Inputs", "as_csr", "check_network"]

Inputs: TypeAlias = CSR | Array | Any
"""Rows of inputs: CSR, a SciPy sparse matrix or array, or a NumPy array."""


def as_csr(network: Network, inputs: Inputs) -> CSR:
    """Return inputs as CSR of shape (rows, network.inputs); those that are CSR already are not copied.

    Parameters
    ----------
    network : what they are the inputs of.
    inputs : CSR, a SciPy sparse matrix or array, or a NumPy array: (rows, network.inputs), or, where the network takes
        images, (images, channels, height, width). Other types of numbers are brought to float32.

    Raises
    ------
    UsageError
        The network is no `Network`.
    InputError
        The inputs are none of these.
    MatrixError
        They do not have two dimensions, or are not of real numbers.
    ShapeError
        They are not as wide as the network's first layer.
    """
    check_network(network)
    rows = _converted(network, inputs)
    if rows.shape[1] != network.inputs:
        raise ShapeError(f"the inputs have {rows.shape[1]} columns; layer 1 takes {network.inputs}")
    return rows


def check_network(network: Network) -> None:
    """Refuse what is no network.

    Raises
    ------
    UsageError
        It is something else.
    """
    if not isinstance(network, Network):
        raise UsageError(f"the network is a {type(network).__name__}; what is run is a sparsenn.Network")


def _converted(network: Network, inputs: Inputs) -> CSR:
    if isinstance(inputs, CSR):
        return inputs
    if isinstance(inputs, np.ndarray):
        images = inputs.ndim == 4 and inputs.shape[1:] == network.image
        return from_dense(inputs.reshape(len(inputs), network.inputs) if images else inputs)
    from scipy.sparse import issparse

    if not issparse(inputs):
        raise InputError(
            f"the inputs are a {type(inputs).__name__}; take a sparsenn.CSR, a SciPy sparse matrix or a NumPy array"
        )
    return CSR.from_scipy(inputs)
