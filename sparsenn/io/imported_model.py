"""Models of networks that other programs trained, of which only the layers are known."""

from __future__ import annotations

from sparsenn.io.model import Model
from sparsenn.network import Network

__all__ = ["imported_model"]


def imported_model(network: Network, provenance: dict[str, str], classes: bool | None = None) -> Model:
    """Return a network as a model.

    Parameters
    ----------
    network : the layers.
    provenance : what it was made of, in words.
    classes : whether outputs are scores of classes; unless known, several numbers of one output are taken for such.
    """
    told = network.outputs > 1 and network.named_outputs is None if classes is None else classes
    return Model(network, "cross_entropy" if told else "mse", told, provenance)
