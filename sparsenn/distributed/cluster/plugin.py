"""What sends a network to the workers of a cluster: to those that are there, and to each that comes later."""

from __future__ import annotations

from typing import Any

from distributed import WorkerPlugin

from sparsenn.distributed.cluster.sessions import keep_network
from sparsenn.network import Network

__all__ = ["NetworkPlugin"]


class NetworkPlugin(WorkerPlugin):  # type: ignore[misc]
    """Has every worker keep a network.

    Parameters
    ----------
    digest : of the network.
    network : the layers.
    """

    def __init__(self, digest: str, network: Network) -> None:
        self.name = f"sparsenn-{digest}"
        self._digest, self._network = digest, network

    def setup(self, worker: Any) -> None:
        """Keep the network, in the worker's process."""
        keep_network(self._digest, self._network)
