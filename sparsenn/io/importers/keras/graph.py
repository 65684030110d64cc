"""The layers of a model as Keras describes it, models within it included, and what each of them takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from sparsenn.errors import InputError
from sparsenn.io.importers.keras.layers import JOINS, LAYERS
from sparsenn.io.importers.keras.operations import OPERATIONS
from sparsenn.io.importers.keras.reading import NO_COUNTERPART, OPERATION, class_of, shown
from sparsenn.io.importers.keras.weights import KerasWeights

DEEPEST = 16  # models within models

_INPUT = "InputLayer"

_MODELS = ("Sequential", "Functional", "Model")

_KNOWN = {_INPUT, *_MODELS, *LAYERS, *(f"{OPERATION}{name}" for name in OPERATIONS)}
"""Classes that are read."""


class Source(NamedTuple):
    """An argument that is a layer's result."""

    name: str


class Placed(NamedTuple):
    """A layer of a model, or an operation.

    name : its own, behind those of the models that it is in.
    kind : its class, as `class_of` gives it.
    path : of its weights.
    args : what it takes, of which `Source` stands for results; nothing where it is an input of the whole model. The
        input of a model that lists none is the result of "".
    kwargs : what it takes by name: none where it is no operation.
    """

    name: str
    kind: str
    config: dict[str, Any]
    path: str
    args: list[Any]
    kwargs: dict[str, Any]


def placed_layers(model: Any, store: KerasWeights) -> tuple[list[Placed], dict[str, Source]]:
    """Return the layers of a model, each after its sources, and those that give its outputs, by the outputs' names.

    Inputs come first, in the order in which the model lists them.
    """
    found: list[Placed] = []
    outputs = _walk(model, "", store, "", 0, [], found)
    inputs = list(_ends(model["config"], "input_layers").values()) if isinstance(model["config"], dict) else []
    found.sort(key=lambda placed: inputs.index(placed.name) if placed.name in inputs else len(inputs))
    return found, outputs


def _walk(
    model: Any, name: str, store: KerasWeights, path: str, depth: int, sources: Sequence[Source], found: list[Placed]
) -> dict[str, Source]:
    """Find the layers of a model, and of those within it; return which give its outputs, by their names.

    sources : the layers whose results the model takes; none of the whole model.
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
    inputs = list(_ends(config, "input_layers").values())
    if depth and len(sources) != max(1, len(inputs)):
        raise InputError(f"{name}: is called with {len(sources)} results; it takes {max(1, len(inputs))}")
    before = sources[0] if sources else Source("")
    for layer in listed:
        kind, own = _described(name, layer)
        label = str(own.get("name", layer.get("name", kind)))
        key = str(layer.get("name", label))
        place = f"{name}/{label}" if name else label
        args: list[Any] = [before]
        kwargs: dict[str, Any] = {}
        if kind not in _KNOWN:
            raise InputError(f"{place} ({kind}): {NO_COUNTERPART}")
        if kind == _INPUT:
            if key not in inputs if inputs else giving:
                raise InputError(f"{place}: is another input, which the model does not list")
            args = [sources[inputs.index(key) if inputs else 0]] if sources else []
        elif "inbound_nodes" in layer:
            args, kwargs = _arguments(f"{place} ({kind})", kind, layer["inbound_nodes"], giving)
        # Operations have no weights, and Keras does not count them where layers are named by their classes.
        inner = path if kind.startswith(OPERATION) else store.inner(path, kind, label, counted)
        if kind in _MODELS:
            taken = args[0] if isinstance(args[0], list) else args
            results = list(_walk(layer, place, store, inner, depth + 1, taken, found).values())
            if len(results) > 1:
                raise InputError(f"{place} ({kind}): gives {len(results)} outputs within the model; one is supported")
            (before,) = results
        else:
            found.append(Placed(place, kind, own, inner, args, kwargs))
            before = Source(place)
        giving[key] = before
    if "output_layers" not in config:
        return {before.name: before}
    outputs = _ends(config, "output_layers")
    if not outputs or any(layer not in giving for layer in outputs.values()):
        raise InputError(f"{name or 'the model'}: gives {list(outputs.values())}; results of its layers are needed")
    return {output: giving[layer] for output, layer in outputs.items()}


def _ends(config: Mapping[str, Any], which: str) -> dict[str, str]:
    """Return the layers that a functional model lists as its inputs or outputs, by the names of these."""
    ends = config.get(which, [])
    layers = _names(_decoded(list(ends.values()) if isinstance(ends, dict) else [ends]))
    names = list(ends) if isinstance(ends, dict) else layers
    if len(names) != len(layers) or len(set(names)) < len(names):
        raise InputError(f"{config.get('name', 'the model')}: has {which} {layers}; each is needed once")
    return dict(zip(names, layers, strict=True))


def _described(name: str, layer: Any) -> tuple[str, dict[str, Any]]:
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
    several = kind in JOINS or kind in _MODELS or kind.startswith(OPERATION)
    if not taken or len(calls) != 1 or any(name not in giving for name in taken) or (len(taken) > 1 and not several):
        raise InputError(f"{label}: takes {taken or 'nothing'}; the result of one layer is needed")
    args, kwargs = (_resolved(each, giving) for each in calls[0])
    if kind.startswith(OPERATION):
        return args, kwargs
    said = [*((None, value) for value in args), *kwargs.items()]
    inputs = [value for _, value in said if _names(value)]
    for key, value in said:
        if not (_names(value) or _says_nothing(value)):
            what = shown(value) if key is None else f"{key}={shown(value)}"
            raise InputError(f"{label}: is called with {what}, which has no counterpart in sparsenn")
    (argument,) = inputs if len(inputs) == 1 else (inputs,)
    if kind in JOINS or kind in _MODELS:
        listed = argument if isinstance(argument, list) and not isinstance(argument, Source) else [argument]
        if not all(isinstance(each, Source) for each in listed):
            raise InputError(f"{label}: takes a list of more than results of layers")
        return [listed], {}
    return [argument[0] if isinstance(argument, list) and len(argument) == 1 else argument], {}


def _says_nothing(value: Any) -> bool:
    """Whether an argument is what a call has without it, such as the masks of several results."""
    return all(map(_says_nothing, value)) if isinstance(value, list) else value is None or value is False


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
