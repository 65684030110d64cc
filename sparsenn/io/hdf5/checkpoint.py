"""One HDF5 file for a training under way: all that it takes to go on as if it had never stopped.

::

    attributes            format = "sparsenn checkpoint", version
    description           JSON: options (name to text or number), generator (its state)
    layers, layerK/       the parameters, as in a model's file
    velocities/layerK/    weights and bias, float32 of the parameters' shapes
    losses                float64, one an epoch done
    validation            float64 (records, 3): epoch, loss, accuracy (NaN where there is none); absent if none
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sparsenn.formats import Array
from sparsenn.io.hdf5.model import read_dense_layers, write_dense_layers
from sparsenn.io.hdf5.reading import Hdf5Source, opened
from sparsenn.io.hdf5.writing import created_as
from sparsenn.layers import Linear
from sparsenn.printable import one_line

_CHECKPOINT = "sparsenn checkpoint"
_VERSION = 1


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A training under way.

    Parameters
    ----------
    options : dict of str to plain values
        What the training was started with, as plain values; to go on, they must be the same.
    layers : tuple of Linear
        The parameters.
    velocities : tuple of (array, array)
        Those of weights and bias, layer by layer, float32.
    generator : dict
        State of the random numbers: that of NumPy's PCG64.
    losses : tuple of float
        Loss of each epoch done.
    validation : tuple of (int, float, float), optional
        Epoch, loss and accuracy of each validation done; the accuracy is NaN where there are no classes.
    """

    options: dict[str, Any]
    layers: tuple[Linear, ...]
    velocities: tuple[tuple[Array, Array], ...]
    generator: dict[str, Any]
    losses: tuple[float, ...]
    validation: tuple[tuple[int, float, float], ...] = field(default=())

    __repr__ = one_line


def write_checkpoint(path: str | os.PathLike[str], checkpoint: Checkpoint) -> None:
    """Write a checkpoint, whole or not at all: until it is on disk the file holds the one before.

    Parameters
    ----------
    path : str or path-like
        The file.
    checkpoint : Checkpoint
        The training as it stands.

    Raises
    ------
    ResourceError
        The file cannot be written.
    """
    description = {"options": checkpoint.options, "generator": checkpoint.generator}
    with created_as(path, _CHECKPOINT, _VERSION, description) as file:
        write_dense_layers(file, checkpoint.layers)
        for number, (weights, bias) in enumerate(checkpoint.velocities, start=1):
            file[f"velocities/layer{number}/weights"] = weights.astype("<f4")
            file[f"velocities/layer{number}/bias"] = bias.astype("<f4")
        file["losses"] = np.array(checkpoint.losses, "<f8")
        if checkpoint.validation:
            file["validation"] = np.array(checkpoint.validation, "<f8")


def read_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Read what `write_checkpoint` wrote.

    Parameters
    ----------
    path : str or path-like
        The file.

    Returns
    -------
    Checkpoint
        The training as it stood.

    Raises
    ------
    FileFormatError
        The file is not HDF5, not a checkpoint of this package, truncated, or does not hold what it should.
    InputError, ResourceError
        The file is not there, cannot be read, or is larger than memory.
    """
    with opened(path) as source:
        description = source.description((_CHECKPOINT,), (_VERSION,))
        layers = read_dense_layers(source)
        velocities = tuple(_velocities(source, number, layer) for number, layer in enumerate(layers, start=1))
        losses = source.vector("losses", "<f8")
        validation = source.matrix("validation", "<f8") if source.has("validation") else np.empty((0, 3))
        if validation.shape[1] != 3 or not np.isfinite(losses).all() or not np.isfinite(validation[:, :2]).all():
            raise source.fault("losses or validation are invalid")
        options, generator = description.get("options"), description.get("generator")
        if not isinstance(options, dict) or not isinstance(generator, dict) or not _is_sound(generator):
            raise source.fault("description has no valid options and generator")
    records = tuple((int(epoch), float(loss), float(accuracy)) for epoch, loss, accuracy in validation)
    return Checkpoint(options, layers, velocities, generator, tuple(losses.tolist()), records)


def _velocities(source: Hdf5Source, number: int, layer: Linear) -> tuple[Array, Array]:
    weights = source.matrix(f"velocities/layer{number}/weights", "<f4")
    bias = source.vector(f"velocities/layer{number}/bias", "<f4")
    if weights.shape != layer.weights.shape or bias.shape != (layer.outputs,):
        raise source.fault(f"velocities of layer {number} do not have the shape of its parameters")
    if not (np.isfinite(weights).all() and np.isfinite(bias).all()):
        raise source.fault(f"velocities of layer {number} hold NaN or infinity")
    return weights, bias


def _is_sound(generator: dict[str, Any]) -> bool:
    """Whether this is the state of a PCG64."""
    made: Any = np.random.PCG64(0)
    try:
        made.state = generator
    except (KeyError, TypeError, ValueError, OverflowError):
        return False
    return bool(made.state == generator)
