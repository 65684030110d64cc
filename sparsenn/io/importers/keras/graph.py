"""The layers of a model as Keras describes it, models within it included, and what each of them takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from sparsenn.errors import InputError
from sparsenn.io.importers.keras.layers import JOINS, LAYERS
from sparsenn.io.importers.keras.operations import OPERATIONS
from sparsenn.io.importers.keras.reading import OPERATION, class_of, shown
from sparsenn.io.importers.keras.weights import KerasWeights

__all__ = ["DEEPEST", "Placed", "Source", "placed_layers"]

DEEPEST = 16
"""Models within models."""

_INPUT = "InputLayer"

_MODELS = ("Sequential", "Functional", "Model")

_KNOWN = {_INPUT, *_MODELS, *LAYERS, *(f"{OPERATION}{name}" for name in OPERATIONS)}
"""Classes that are read."""


class Source(NamedTuple):
    """An argument that is a layer's result.

    Parameters
    ----------
    name : the layer's.
    """

    name: str


class Placed(NamedTuple):
    """A layer of a model, or an operation.

    Parameters
    ----------
    name : its own, behind those of the models that it is in.
    kind : its class, as `class_of` gives it.
    config : its configuration.
    path : of its weights.
    args : what it takes, of which `Source` stands for results; the model's input has that of "".
    kwargs : what it takes by name: none where it is no operation.
    """

    name: str
    kind: str
    config: dict[str, Any]
    path: str
    args: list[Any]
    kwargs: dict[str, Any]


def placed_layers(model: Any, store: KerasWeights) -> tuple[list[Placed], str]:
    """Return the layers of a model, each after its sources, and the name of the one whose result the model gives.

    Raises
    ------
    InputError
        The description is not sound, or more than one input, one output and layers that are called once.
    """
    found: list[Placed] = []
    last = _walk(model, "", store, "", 0, Source(""), found)
    return found, last.name


def _walk(
    model: Any, name: str, store: KerasWeights, path: str, depth: int, source: Source, found: list[Placed]
) -> Source:
    """Find the layers of a model, and of those within it; return which gives what it gives.

    Parameters
    ----------
    source : the layer whose results the model takes.
    found : put the layers here.
    """
    if depth > DEEPEST:
        raise InputError(f"{name}: models within models, {depth} deep; {DEEPEST} are the most")
    kind, config = _described(name, model)
    if kind not in _MODELS:
        raise InputError(f"{name or 'the model'}: is a {kind}; Sequential models, and chains of layers, are supported")
    listed = config.get("layers")
    if not isinstance(listed, list):
        raise InputError(f"{name or 'the model'}: lists no layers")
    counted: Counter[str] = Counter()
    giving: dict[str, Source] = {}  # by the names that layers have in this model
    before = source
    for layer in listed:
        kind, own = _described(name, layer)
        label = str(own.get("name", layer.get("name", kind)))
        place = f"{name}/{label}" if name else label
        args: list[Any] = [before]
        kwargs: dict[str, Any] = {}
        if kind not in _KNOWN:
            raise InputError(f"{place} ({kind}): has no counterpart in sparsenn; give a model without it")
        if kind == _INPUT:
            args = [source]
            if giving:
                raise InputError(f"{place}: is another input; only models with one input are supported")
        elif "inbound_nodes" in layer:
            args, kwargs = _arguments(f"{place} ({kind})", kind, layer["inbound_nodes"], giving)
        # Operations have no weights, and Keras does not count them where layers are named by their classes.
        inner = path if kind.startswith(OPERATION) else store.inner(path, kind, label, counted)
        if kind in _MODELS:
            before = _walk(layer, place, store, inner, depth + 1, args[0], found)
        else:
            found.append(Placed(place, kind, own, inner, args, kwargs))
            before = Source(place)
        giving[str(layer.get("name", label))] = before
    if "output_layers" not in config:
        return before
    outputs = _names(_decoded([config["output_layers"]]))
    if len(outputs) != 1 or outputs[0] not in giving:
        raise InputError(f"{name or 'the model'}: gives {outputs}; the result of one layer is needed")
    return giving[outputs[0]]


def _described(name: str, layer: Any) -> tuple[str, dict[str, Any]]:
    """Return the class and the configuration of a layer or a model."""
    kind, config = (layer.get(key) if isinstance(layer, dict) else None for key in ("class_name", "config"))
    if isinstance(config, list):  # as the first versions wrote models
        config = {"layers": config}
    if not isinstance(kind, str) or not isinstance(config, dict):
        raise InputError(f"{name or 'the model'}: a layer has no class_name and config")
    return class_of(layer), config


def _arguments(label: str, kind: str, nodes: Any, giving: Mapping[str, Source]) -> tuple[list[Any], dict[str, Any]]:
    """Return what a layer or an operation is called with, once. A layer takes results of others, and nothing else."""
    calls = [_call(node) for node in nodes] if isinstance(nodes, list) else []
    taken = _names([[args, list(kwargs.values())] for args, kwargs in calls])
    several = kind in JOINS or kind.startswith(OPERATION)
    if not taken or len(calls) != 1 or any(name not in giving for name in taken) or (len(taken) > 1 and not several):
        raise InputError(f"{label}: takes {taken or 'nothing'}; the result of one layer is needed")
    args, kwargs = (_resolved(each, giving) for each in calls[0])
    if kind.startswith(OPERATION):
        return args, kwargs
    said = [*((None, value) for value in args), *kwargs.items()]
    inputs = [value for _, value in said if _names(value)]
    for key, value in said:
        if not (_names(value) or value is None or value is False):
            what = shown(value) if key is None else f"{key}={shown(value)}"
            raise InputError(f"{label}: is called with {what}, which has no counterpart in sparsenn")
    (argument,) = inputs if len(inputs) == 1 else (inputs,)
    if kind in JOINS:
        listed = argument if isinstance(argument, list) and not isinstance(argument, Source) else [argument]
        if not all(isinstance(each, Source) for each in listed):
            raise InputError(f"{label}: takes a list of more than results of layers")
        return [listed], {}
    return [argument[0] if isinstance(argument, list) and len(argument) == 1 else argument], {}


def _call(node: Any) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of a call, in which `Source` stands for results, by the names of layers in their model."""
    if isinstance(node, dict):
        args, kwargs = _decoded(node.get("args", [])), node.get("kwargs", {})
        if isinstance(args, list) and isinstance(kwargs, dict):
            return args, {key: _decoded(value) for key, value in kwargs.items()}
        raise InputError("a call of a layer has no list of arguments")
    # Versions before 3: [name, node, tensor, arguments by name] of each result that the layer takes.
    entries = node if isinstance(node, list) and not _is_result(node) else [node]
    sources = [_decoded(entry) for entry in entries]
    named = [entry[3] for entry in entries if isinstance(entry, list) and len(entry) > 3 and isinstance(entry[3], dict)]
    kwargs = {key: _decoded(value) for each in named for key, value in each.items()}
    return sources if len(sources) == 1 else [sources], kwargs


def _is_result(value: Any) -> bool:
    """Whether a value stands for the result of a layer: [name, node, tensor, ...]."""
    return isinstance(value, list) and len(value) > 2 and isinstance(value[0], str) and isinstance(value[1], int)


def _decoded(value: Any) -> Any:
    """Return a value with `Source` for results, and arrays for constants."""
    if isinstance(value, dict):
        kind, config = value.get("class_name"), value.get("config")
        history = config.get("keras_history") if isinstance(config, dict) else None
        if _is_result(history):
            return _decoded(history)
        if kind in ("__numpy__", "__tensor__") and isinstance(config, dict):
            try:
                return np.asarray(config.get("value"), np.float64)
            except (TypeError, ValueError) as error:
                raise InputError(f"a constant of a model is no array ({error})") from error
        return value
    if _is_result(value):
        if value[2] != 0:
            raise InputError(f"a layer takes result {value[2]} of {value[0]}; only layers of one result are supported")
        return Source(value[0])
    return [_decoded(each) for each in value] if isinstance(value, list) else value


def _names(value: Any) -> list[str]:
    """Return the names of the layers whose results a decoded value holds, each as often as it does."""
    if isinstance(value, Source):
        return [value.name]
    return [name for each in value for name in _names(each)] if isinstance(value, list) else []


def _resolved(value: Any, giving: Mapping[str, Source]) -> Any:
    """Return a decoded value with the layers that give the results now."""
    if isinstance(value, Source):
        return giving[value.name]
    if isinstance(value, dict):
        return {key: _resolved(each, giving) for key, each in value.items()}
    return [_resolved(each, giving) for each in value] if isinstance(value, list) else value
