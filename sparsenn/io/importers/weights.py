"""Bags of weights: arrays with names and nothing else, in `.npz`, `.safetensors`, a state dict or any mapping."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from scipy.sparse import issparse

from sparsenn.errors import FileFormatError, InputError, UsageError, prefix_errors
from sparsenn.io.importers.host_arrays import host_matrix
from sparsenn.io.importers.normalising import normalise_by
from sparsenn.io.importers.rounding import check_rounding
from sparsenn.io.importers.signal import Signal, inputs
from sparsenn.io.importers.windows import convolve
from sparsenn.layers import (
    Activation,
    AvgPool2d,
    Flatten,
    ImageLayer,
    LogSoftmax,
    MaxPool2d,
    Pool2d,
    ReLU,
    Softmax,
    SoftmaxLayer,
)
from sparsenn.layers.activation import ACTIVATIONS
from sparsenn.layers.activation_names import check_activation
from sparsenn.layers.sparse_or_dense import SPARSE_BELOW
from sparsenn.model import Model, imported_model
from sparsenn.network import Image, Network
from sparsenn.printable import printable

WEIGHT_SUFFIXES = (".npz", ".safetensors")
"""What the names of files end in that bags of weights are read from."""

ORDERS = ("outputs, inputs", "inputs, outputs")
"""How a matrix of weights may lie: PyTorch's way, or Keras's."""

Step: TypeAlias = str | Activation | ImageLayer
"""A layer's name in the bag, an activation, or a layer without weights."""

_PICKLED = {".pt", ".pt2", ".pth", ".bin", ".ckpt", ".pkl", ".pickle", ".joblib"}

_ROLES = {
    **dict.fromkeys(("weight", "weights", "kernel", "w", "coef", "coefs"), "weight"),
    **dict.fromkeys(("bias", "biases", "b", "intercept", "intercepts"), "bias"),
    "weight_orig": "weight",
    "weight_mask": "mask",
    "mask": "mask",
    "bias_orig": "bias",
    "bias_mask": "bias mask",
    "running_mean": "mean",
    "running_var": "variance",
    "gamma": "weight",
    "beta": "bias",
    "moving_mean": "mean",
    "moving_variance": "variance",
    "num_batches_tracked": "count",
}
"""What arrays are for, by the word in their names that says so."""

_WORD = re.compile(rf"(?<![A-Za-z])({'|'.join(sorted(_ROLES, key=len, reverse=True))})(?!_?[A-Za-z])", re.IGNORECASE)
"""Such a word in a name, with no letters beside it."""

_HABITS = {".weight": True, ".weight_orig": True, "/kernel": False, ".kernel": False, "coefs": False}
_SPELLED = re.compile(r"^.*(?=[./])|[:_]?\d*$")
"""Whether matrices whose names end so have outputs first, and what comes before and after such ends."""

_HINT = "say image=(channels, height, width)"

_IMAGE = re.compile(r"([1-9]\d{0,8})x([1-9]\d{0,8})x([1-9]\d{0,8})", re.ASCII)
_POOL = re.compile(r"(max|avg)_pool([1-9]\d{0,8})(?:/([1-9]\d{0,8}))?", re.ASCII)
_CLIPPED = re.compile(r"relu(\d{1,9}(?:\.\d{1,9})?)", re.ASCII)
_WORDS: dict[str, Activation | ImageLayer] = {
    **{kind.name: kind() for kind in ACTIVATIONS},
    **{step.name: step for step in (Softmax(), LogSoftmax(), Flatten())},
}
"""What words of a text of steps stand for."""

_EPSILON = 1e-5
"""What PyTorch adds to a running variance by default."""

_KERAS_EPSILON = 1e-3
"""Keras's default of the number added to a moving variance."""


@dataclass
class _Group:
    """The arrays of one layer, by what they are for, how the weights are called, and what is added to a variance."""

    name: str
    arrays: dict[str, Any] = field(default_factory=dict)
    spelled: str = ""
    epsilon: float = _EPSILON
    used: bool = False


def from_weights(
    source: str | os.PathLike[str] | Mapping[str, Any],
    layers: Sequence[Step] | str | None = None,
    *,
    activation: Activation | None = None,
    output: Activation | SoftmaxLayer | None = None,
    order: str | None = None,
    image: Image | None = None,
    sparse_below: float = SPARSE_BELOW,
) -> Network:
    """Return the network whose weights and biases are in a bag, layer after layer.

    ::

        from_weights("lenet-300-100.npz")
        from_weights(module.state_dict(), output=Softmax())
        from_weights(
            "lenet5.safetensors",
            ["conv1", MaxPool2d(2), "conv2", MaxPool2d(2), Flatten(), "fc1", ReLU(), "fc2"],
            image=(1, 28, 28),
        )
        from_weights("lenet5.safetensors", "1x28x28,conv1,max_pool2,conv2,max_pool2,flatten,fc1,relu,fc2")

    Parameters
    ----------
    source : str, path-like or mapping
        A file in `.npz` or `.safetensors`, or a mapping of names to arrays, SciPy's sparse matrices or PyTorch's
        tensors, such as a state dict. Arrays belong together whose names differ in `weight` (or `kernel`) and `bias`
        alone; pruning's `weight_orig` and `weight_mask` are multiplied; where names say nothing, a vector is the bias
        of the matrix before it.
    layers : sequence of str and layers, or str, optional
        Names of layers in the order in which they are applied, with activations and layers without weights between
        them. Unless given, all layers of the bag in its order, which are fully connected then, with `activation`
        between them. A name may stand for a batch normalisation, too (its epsilon is taken to be 1e-5, or 1e-3 if its
        arrays have Keras's names: gamma, beta, moving_mean, moving_variance). Or all of it as one text, separated by
        commas: the image first, if there is one, as channels x height x width; and names of activations, such as relu,
        relu6 (clipped at 6) or tanh, softmax, log_softmax, flatten, max_pool2 (windows of 2 x 2) or avg_pool3/2
        (windows of 3 x 3, each 2 pixels from the one before) for what is no layer of the bag.
    activation : Activation, optional
        Applied after each layer but the last where `layers` is not given; `ReLU()` unless given.
    output : Activation, Softmax or LogSoftmax, optional
        Applied after the last layer where `layers` is not given; nothing unless given.
    order : str, optional
        How matrices lie, one of `ORDERS`; by default as makes one's outputs the next one's inputs.
    image : (int, int, int), optional
        Channels, height and width of the inputs, where convolutions or pools come first.
    sparse_below : float, default 0.5
        A layer in which a smaller share of weights is not zero becomes sparse.

    Returns
    -------
    Network
        The layers, in their order.

    Raises
    ------
    InputError
        Shapes do not fit together, an array belongs to no layer, or the order of matrices is ambiguous; the message
        names the layer and shapes.
    FileFormatError
        The file is damaged, or of a kind that runs code when it is read.
    UsageError
        An argument is of no use, such as an unknown name.
    """
    path = None if isinstance(source, Mapping) else source
    try:
        groups = _groups(source if isinstance(source, Mapping) else _read(source))
        if layers is None:
            _check_fully_connected(groups, ordered=path is None or Path(path).suffix.lower() == ".npz")
            names = list(groups)
            hidden = ReLU() if activation is None else activation
            steps: Sequence[Any] = [step for name in names for step in (name, hidden)][:-1]
            steps = [*steps, *([] if output is None else [output])]
        elif activation is not None or output is not None:
            raise UsageError("layers name the activations; leave out activation and output")
        elif isinstance(layers, str):
            steps, size = _steps_of(layers, groups)
            image = size if image is None else image
        else:
            steps = layers
        with np.errstate(all="ignore"):  # numbers that are not finite are refused where they would become weights
            return check_rounding(_applied(inputs(image, _HINT, sparse_below), groups, steps, order).network())
    except FileFormatError:
        raise
    except InputError as error:
        if path is None:
            raise
        raise FileFormatError(path, str(error)) from error


def read_weights(path: str | os.PathLike[str], steps: str | None = None) -> Model:
    """Read a file of weights as a model, of fully connected layers with ReLU between them unless steps say otherwise.

    Several outputs are taken for scores of classes. Errors are those of `from_weights`, which calls the steps layers.
    """
    applied = "with ReLU between layers" if steps is None else f"applied as {steps}"
    return imported_model(from_weights(path, steps), {"source": f"weights alone, {applied}"})


def _read(path: str | os.PathLike[str]) -> Mapping[str, Any]:
    suffix = Path(path).suffix.lower()
    if suffix == ".npz":
        from sparsenn.io.arrays.npy import read_npz, sparse_rows

        arrays = read_npz(path, None)
        matrix = sparse_rows(path, arrays)
        return arrays if matrix is None else {"weights": matrix.to_scipy()}
    if suffix == ".safetensors":
        from sparsenn.io.arrays.safetensors import read_safetensors

        return read_safetensors(path)
    if suffix in _PICKLED:
        raise FileFormatError(
            path,
            "such files run code when they are read; save the weights by safetensors.torch.save_file("
            "module.state_dict(), NAME), or give the module to sparsenn.from_torch",
        )
    raise UsageError(f"{os.fspath(path)}: weights are read from {' and '.join(WEIGHT_SUFFIXES)} files")


def _groups(bag: Mapping[str, Any]) -> dict[str, _Group]:
    """Return the arrays of each layer: in the bag's order, or by the numbers in their names where these say another."""
    if not bag:
        raise InputError("there are no arrays in it")
    found: dict[str, _Group] = {}
    last: _Group | None = None
    for name, value in bag.items():
        if not isinstance(name, str):
            raise InputError(f"the name {name!r} is not a text")
        if "parametrizations." in name:
            raise InputError(
                f"{name}: weights are computed from it when the module is called; take sparsenn.from_torch"
            )
        array = host_matrix(f"array {name}", value)
        word = next(reversed(list(_WORD.finditer(name))), None)
        if word is not None:
            role = _ROLES[word.group(1).lower()]
            stem = (name[: word.start()].rstrip("._/") + name[word.end() :]).strip("._/") or "the layer"
            last = found.setdefault(stem, _Group(stem))
        elif len(array.shape) >= 2 or last is None:
            role, last = "weight", found.setdefault(name, _Group(name))
        else:
            role = "bias"
        if role in last.arrays:
            raise InputError(f"{name}: layer {last.name} has a {role} already; give the layers other names")
        last.arrays[role] = array
        last.spelled = name if role == "weight" else last.spelled
        if word is not None and word.group(1).lower() == "moving_variance":
            last.epsilon = _KERAS_EPSILON
    return {name: found[name] for name in sorted(found, key=_by_numbers)} if _numbered(found) else found


def _by_numbers(name: str) -> tuple[Any, ...]:
    """Return what sorts names as people count: layer 2 before layer 10."""
    parts = ((part.isdecimal(), part.lstrip("0"), part) for part in re.split(r"(\d+)", name))
    # numbers by their digits: int() refuses long ones
    return tuple((len(digits), digits) if is_number else (-1, part) for is_number, digits, part in parts)


def _numbered(names: Mapping[str, Any]) -> bool:
    return len({re.sub(r"\d+", "#", name) for name in names}) == 1


def _check_fully_connected(groups: Mapping[str, _Group], ordered: bool) -> None:
    """Refuse layers of which weights and biases alone do not determine what is between them, or which comes first."""
    example = f"layers=[{', '.join(map(repr, groups))}]"
    for group in groups.values():
        what = "a running mean" if "mean" in group.arrays else "no weights" if not _shape(group) else None
        if what is None and len(_shape(group)) != 2:
            what = f"weights of shape {_shape(group)}"
        if what is not None:
            raise InputError(
                f"{group.name}: has {what}, and is not a fully connected layer; say what is applied, and in which "
                f"order: {example} with activations and pools between them (on the command line --steps)"
            )
    sizes = Counter(size for group in groups.values() for size in _shape(group))
    certain = len(groups) == 1 or sorted(sizes.values()) == [1, 1, *[2] * (len(groups) - 1)]
    if not (ordered or certain or _numbered(groups)):
        raise InputError(f"such files keep no order, and the shapes allow several; say which comes first: {example}")


def _steps_of(text: str, groups: Mapping[str, _Group]) -> tuple[list[Step], Image | None]:
    """Return what a text says is applied, and the image that it begins with, if any."""
    first, *others = words = [word.strip() for word in text.split(",")]
    sizes = _IMAGE.fullmatch(first) if first not in groups else None
    image = None if sizes is None else (int(sizes[1]), int(sizes[2]), int(sizes[3]))
    return [word if word in groups else _step(word, groups) for word in (others if sizes else words)], image


def _step(word: str, groups: Mapping[str, _Group]) -> Step:
    if pool := _POOL.fullmatch(word):
        kind = MaxPool2d if pool[1] == "max" else AvgPool2d
        return kind(int(pool[2]), int(pool[3] or pool[2]))
    if clipped := _CLIPPED.fullmatch(word):
        return ReLU(float(clipped[1]))
    if word in _WORDS:
        return _WORDS[word]
    known = f"{', '.join(_WORDS)}, relu6, max_pool2 or avg_pool3/2"
    raise UsageError(f"the step {word!r} is not a layer of these weights ({_names(groups)}), and not {known}")


def _applied(signal: Signal, groups: Mapping[str, _Group], steps: Sequence[Any], order: str | None) -> Signal:
    transposed = _is_transposed(groups, [step for step in steps if isinstance(step, str)], order)
    for number, step in enumerate(steps, start=1):
        if isinstance(step, str):
            if step not in groups:
                raise UsageError(f"there is no layer {step!r} (known: {_names(groups)})")
            groups[step].used = True
            with prefix_errors(step):
                signal = _layer(signal, groups[step], transposed)
            continue
        if not isinstance(step, ImageLayer):
            check_activation(step)
        with prefix_errors(f"step {number} ({step.name})"):
            if isinstance(step, Pool2d):
                signal = signal.pooled(step)
            elif isinstance(step, Flatten):
                signal = signal.flattened()
            elif isinstance(step, SoftmaxLayer):
                signal = signal.softmax(step)
            else:
                signal = signal.activated(step)
    unused = [group.name for group in groups.values() if not group.used]
    if unused:
        raise InputError(f"the layers leave out {', '.join(unused)}; use all of them, or remove them from the weights")
    return signal


def _names(groups: Mapping[str, _Group]) -> str:
    return printable(", ".join(groups))


def _layer(signal: Signal, group: _Group, transposed: bool) -> Signal:
    arrays = group.arrays
    if "weight" not in arrays and "mean" not in arrays:
        raise InputError(f"has no weights, but {', '.join(arrays)}")
    if "mean" in arrays:
        if "variance" not in arrays:
            raise InputError("has a running mean, but no running variance")
        moving = arrays["mean"], arrays["variance"]
        return normalise_by(signal, *moving, group.epsilon, arrays.get("weight"), arrays.get("bias"))
    weight, bias = _masked(group, "weight", "mask"), _masked(group, "bias", "bias mask")
    if len(weight.shape) == 4:
        return convolve(signal, weight, bias)
    return signal.connected(weight.T if transposed else weight, bias)


def _masked(group: _Group, role: str, mask: str) -> Any:
    array, over = group.arrays.get(role), group.arrays.get(mask)
    if array is None or over is None:
        return array
    if over.shape != array.shape:
        raise InputError(f"a mask of shape {over.shape} for a {role} of shape {array.shape}")
    return array.multiply(over) if issparse(array) else array * over


def _is_transposed(groups: Mapping[str, _Group], names: Sequence[str], order: str | None) -> bool:
    """Whether matrices are outputs × inputs: by `order`, or so that each layer's outputs are the next one's inputs."""
    if order is not None:
        if order not in ORDERS:
            raise UsageError(f"the order of matrices is {order!r}; known: {', '.join(map(repr, ORDERS))}")
        return order == ORDERS[0]
    called = [groups[name] for name in names if name in groups and len(_shape(groups[name])) == 2]
    fits = [_fits(called, outputs) for outputs in (0, 1)]
    shapes = ", ".join(f"{group.name} {' × '.join(map(str, _shape(group)))}" for group in called)
    if called and not any(fits):
        raise InputError(f"no order of dimensions makes each layer's outputs the next one's inputs: {shapes}")
    if not all(fits):
        return fits[0]
    habits = {_HABITS.get(_SPELLED.sub("", group.spelled)) for group in called}
    if not called or habits == {True}:
        return True
    if habits == {False}:
        return False
    raise InputError(
        f"ambiguous orientation: {shapes}; say order={ORDERS[0]!r} (PyTorch's) or {ORDERS[1]!r} (Keras's, SciPy's)"
    )


def _shape(group: _Group) -> tuple[int, ...]:
    return tuple(group.arrays["weight"].shape) if "weight" in group.arrays else ()


def _fits(groups: Sequence[_Group], outputs: int) -> bool:
    """Whether matrices fit each other and their biases, with outputs along that dimension."""
    sizes = [(_shape(group)[1 - outputs], _shape(group)[outputs], group.arrays.get("bias")) for group in groups]
    biases = all(bias is None or bias.shape in ((), (made,)) for _, made, bias in sizes)
    return biases and all(made == taken for (_, made, _), (taken, _, _) in pairwise(sizes))
