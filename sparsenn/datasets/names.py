"""The challenge's twelve problems and their names."""

from __future__ import annotations

from sparsenn.errors import unknown_name
from sparsenn.io.challenge.layout import CHALLENGE_BIAS

NEURON_COUNTS = tuple(CHALLENGE_BIAS)
LAYER_COUNTS = (120, 480, 1920)

_PROBLEMS = {f"radixnet-{neurons}x{layers}": (neurons, layers) for neurons in NEURON_COUNTS for layers in LAYER_COUNTS}

NAMES = tuple(_PROBLEMS)  # radixnet-1024x120 and the other eleven


def parse_name(name: str) -> tuple[int, int]:
    """Take the name of a dataset apart.

    Parameters
    ----------
    name : str
        One of `NAMES`.

    Returns
    -------
    (int, int)
        Neurons and layers.

    Raises
    ------
    UsageError
        The name is unknown; the message lists all.
    """
    if name not in _PROBLEMS:
        raise unknown_name("dataset", name, NAMES)
    return _PROBLEMS[name]
