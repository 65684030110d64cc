"""How Keras's layers and operations are read: every argument and key of a configuration is understood, or refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from sparsenn.errors import InputError
from sparsenn.formats import Array
from sparsenn.io.importers.signal import Signal

NO_COUNTERPART = "has no counterpart in sparsenn; from_keras(…, through='onnx') leaves it to ONNX Runtime"

OPERATION = "ops."
"""What the classes of operations begin with here; several have the same names as layers that compute something else."""

Weights: TypeAlias = Callable[[Sequence[str]], list[Array]]
"""Gives a layer's arrays of these names, all of which it must have, and no others."""

_TRAINING = (
    *("name", "trainable", "dtype", "dynamic", "optional", "seed", "shared_object_id"),
    *("batch_input_shape", "batch_shape", "input_shape", "input_dim", "sparse", "ragged"),
    *("lora_rank", "lora_alpha", "quantization_config"),
)
"""Keys that any layer's configuration may have, and that change no number that a model predicts."""

_TRAINING_SUFFIXES = ("_initializer", "_regularizer", "_constraint")  # what such keys end in
_LONGEST_SHOWN = 40  # characters of a value in a message
_PACKAGES = ("keras", "tf_keras", "tensorflow")  # where Keras's own classes are from


class Reading(NamedTuple):
    """How a kind of layer or operation is read.

    read : makes a signal of those that the layer takes.
    keys : of the configuration, separated by spaces, that are understood; a layer that sets others is refused.
    parameters : of an operation, in order.
    """

    read: Callable[..., Signal]
    keys: str = ""
    parameters: tuple[str, ...] = ("x",)


@dataclass(frozen=True)
class Layer:
    """A layer, or an operation, of Keras.

    kind : the name of its class, as `class_of` gives it.
    config : as Keras writes it.
    channels_last : how Keras holds images.
    """

    kind: str
    config: Mapping[str, Any]
    weights: Weights
    channels_last: bool

    def read(self, reading: Reading | None, *arguments: Any) -> Signal:
        """Return what it makes of what it takes.

        reading : how its kind is read; None where no layer of sparsenn does what it does.
        arguments : a signal; several, for `JOINS`; or an operation's arguments.
        """
        if reading is None:
            raise InputError(NO_COUNTERPART)
        keys = {*_TRAINING, *reading.keys.split()}
        for key, value in self.config.items():
            if not (key in keys or key.endswith(_TRAINING_SUFFIXES) or value is None):
                raise InputError(f"has {key}={shown(value)}, which has no counterpart in sparsenn")
        try:
            return reading.read(*arguments, self)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise InputError(f"has no valid configuration ({type(error).__name__}: {error})") from error

    def arrays(self, *names: str) -> list[Any]:
        """Return its arrays of these names, and its bias, or None where it has none."""
        return self.weights([*names, "bias"]) if self.config["use_bias"] else [*self.weights(names), None]


def class_of(described: Mapping[str, Any]) -> str:
    """Return the class of what Keras describes: the name alone is that of a layer of its own.

    Descriptions in `.h5` files have no module. Operations are in them from version 3 on only, in which every layer says
    whether it is trainable, but for SpatialDropout. A module that is null is that of a user's script.
    """
    kind, module, registered = (described.get(key) for key in ("class_name", "module", "registered_name"))
    packages = str(module).split(".") if "module" in described else []
    if packages and packages[0] not in _PACKAGES:
        return f"{module or '__main__'}.{kind}" if registered in (None, kind) else str(registered)
    if registered not in (None, kind):
        return str(registered)
    nodes, config = described.get("inbound_nodes"), described.get("config")
    called = isinstance(nodes, list) and any(isinstance(node, dict) for node in nodes)
    is_layer = not isinstance(config, dict) or "trainable" in config or str(kind).startswith("SpatialDropout")
    is_operation = (not packages and called and not is_layer) or "ops" in packages or "activations" in packages
    return f"{OPERATION if is_operation else ''}{kind}"


def shown(value: Any) -> str:
    """Return a value as text, in which long ones are cut."""
    text = repr(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


def constant(signal: Signal, value: Any, channels_last: bool) -> Array:
    """Return numbers that Keras broadcasts to a signal, in a shape that is broadcast to its row here."""
    try:
        numbers = np.asarray(value, np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"computes with {shown(value)}, which is no constant") from error
    shape = (*signal.shape[1:], signal.shape[0]) if channels_last else signal.shape
    if numbers.ndim == len(shape) + 1 and numbers.shape[0] == 1:
        numbers = numbers[0]
    sizes = (1,) * (len(shape) - numbers.ndim) + numbers.shape
    known = numbers.ndim == 0 or signal.width
    if not known or len(sizes) > len(shape) or any(a not in (1, b) for a, b in zip(sizes, shape, strict=True)):
        raise InputError(f"computes with a constant of shape {numbers.shape}, which does not fit rows of shape {shape}")
    return np.moveaxis(numbers.reshape(sizes), -1, 0) if channels_last else numbers.reshape(sizes)
