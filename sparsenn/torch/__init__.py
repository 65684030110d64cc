"""Networks as modules of PyTorch, which is imported when `wrap` is called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from sparsenn.engine.options import NamedOptions
from sparsenn.errors import UsageError
from sparsenn.network import Network

if TYPE_CHECKING:
    from sparsenn.torch.module import SparseModule

__all__ = ["wrap"]


def wrap(network: Network, **options: Unpack[NamedOptions]) -> SparseModule:
    """Return a network as a `torch.nn.Module`, for inference.

    ::

        module = sparsenn.torch.wrap(network)
        outputs = module(rows)                        # of shape (rows, outputs), on the device of the rows

    Rows are run where they are, and on a GPU on PyTorch's current stream; nothing is copied. The module computes by the
    registered operator `sparsenn::run`, which `torch.compile` leaves whole; it has no parameters, and no derivative,
    neither backward nor forward.

    Unless a device is among the options, there is a session for each device that rows come from.

    Parameters
    ----------
    network : Network
        The layers.
    **options : Options
        As `sparsenn.Session` takes them.

    Returns
    -------
    torch.nn.Module
        A module without parameters.

    Raises
    ------
    UsageError
        PyTorch is not installed, or too old to have `torch.library.custom_op`; or as `sparsenn.Session`.
    """
    try:
        from sparsenn.torch.module import SparseModule
    except (ImportError, AttributeError) as error:
        raise UsageError(f"wrap needs PyTorch, which is missing or too old ({error})") from error
    return SparseModule(network, options)
