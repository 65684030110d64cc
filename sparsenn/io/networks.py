"""Networks from models in any form: a file, a `Model`, a module of PyTorch, an ONNX model, ..."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np

from sparsenn.errors import InputError, UsageError
from sparsenn.formats import InputLayout
from sparsenn.formats.named_shapes import check_names
from sparsenn.layers import Linear, Slice, SparseLinear
from sparsenn.model import Model, with_onnx_graph
from sparsenn.network import Network, Node
from sparsenn.printable import kind_of

if TYPE_CHECKING:
    from sparsenn.formats import Scaling

NetworkSource: TypeAlias = "Network | Model | str | os.PathLike[str] | Any"
"""The models that `network_of` reads."""

OpenSizes: TypeAlias = Mapping[str, tuple[int | None, ...] | None]
"""The sizes of inputs by name, None for open ones, as `OpenSizesError.sizes` has them."""

_T = TypeVar("_T")

_READERS = {
    "keras": ("sparsenn.io.importers.keras.model", "from_keras"),
    "onnx": ("sparsenn.io.importers.onnx.files", "from_onnx"),
    "tf_keras": ("sparsenn.io.importers.keras.model", "from_keras"),
    "sklearn": ("sparsenn.io.importers.sklearn.model", "from_sklearn"),
    "torch": ("sparsenn.io.importers.torch.module", "from_torch"),
}
"""The packages whose objects are models, and the functions that read these."""


def network_of(model: NetworkSource, shape: Mapping[str, tuple[int, ...]] | None = None) -> Network:
    """Return the network of a model in any form.

    No package is imported but that of the object's own class.

    model : Network, Model, path, torch.nn.Module, torch.export.ExportedProgram, onnx.ModelProto, bytes of a file,
        keras.Model, estimator
        A path is that of a file that `read_model` takes. The scaling of a `Model` becomes part of its layers.
    shape : as `from_onnx` takes it, of a model of ONNX.

    Returns
    -------
    Network
        The layers.
    """
    if isinstance(model, Network):
        return model
    from sparsenn.io.files import read_model

    if isinstance(model, str | os.PathLike):
        model = read_model(model, shape=shape)
    if isinstance(model, Model):
        return _of_model(model)
    packages = ["onnx" if each is bytes else each.__module__.partition(".")[0] for each in type(model).__mro__]
    package = next((each for each in packages if each in _READERS), None)
    if package is None:
        raise UsageError(
            f"the model is {kind_of(model)}; give a sparsenn.Network or Model, the path of a model's file, a "
            "torch.nn.Module, an onnx.ModelProto, a keras.Model or a fitted estimator of scikit-learn"
        )
    module, function = _READERS[package]
    options = {} if shape is None else {"shape": shape}
    network: Network = getattr(import_module(module), function)(model, **options)
    return network


def sample_shapes(sizes: OpenSizes, inputs: Any, is_sample: bool = False) -> dict[str, tuple[int, ...]]:
    """Return the shapes of one sample, as `from_onnx` takes them, of those inputs whose sizes are open.

    is_sample : whether the inputs are one sample together; else one axis counts samples.
    """
    inputs, shapes = inputs_by_name(sizes, inputs), {}
    for name, known in sizes.items():
        if known is not None and known.count(None) < 2 - is_sample:
            continue
        try:
            shape = tuple(getattr(inputs[name], "shape", ())) or np.shape(inputs[name])
        except (RuntimeError, TypeError, ValueError) as error:  # rows of different lengths, or PyTorch's nested tensors
            raise InputError(f"the input {name!r} has no shape ({error}); give an array") from error
        if not is_sample and (known is None or len(shape) == len(known)):
            rows = 0 if known is None or known[0] in (None, 1) else known.index(None)
            shape = shape[:rows] + shape[rows + 1 :]
        shapes[name] = tuple(map(int, shape))
    return shapes


def inputs_by_name(sizes: OpenSizes, inputs: Any) -> dict[str, Any]:
    """Return inputs of a call by their names."""
    if not isinstance(inputs, dict):
        is_list = isinstance(inputs, list | tuple) and all(hasattr(each, "shape") for each in inputs)
        arrays = inputs if is_list and len(inputs) == len(sizes) else [inputs]
        is_named = arrays is inputs and len(sizes) > 1 and hasattr(inputs, "_asdict")
        inputs = inputs._asdict() if is_named else dict(zip(sizes, arrays, strict=False))
    check_names(inputs, sizes)
    return dict(inputs)


def read_with_sizes(
    read: Callable[[dict[str, tuple[int, ...]] | None], _T], sizes: OpenSizes, inputs: Any
) -> tuple[_T, bool]:
    """Read a model with the open sizes that inputs fix; return also whether the inputs are one sample together.

    They are where rows depend on each other. Errors are those of `read`, and of `sample_shapes`.

    read : called with shapes as `from_onnx` takes them, or None.
    """
    try:
        return read(sample_shapes(sizes, inputs) or None), False
    except InputError as error:
        with suppress(InputError):
            return read(sample_shapes(sizes, inputs, is_sample=True)), True
        raise error from error.__cause__


def _of_model(model: Model) -> Network:
    network, encoding = model.network, model.encoding
    if encoding is not None and encoding.named and network.input_layout is None:
        columns = encoding.columns
        if all(column.categories is None for column in columns):
            named = replace(network, input_layout=InputLayout(names=tuple(column.name for column in columns)))
            network = with_onnx_graph(named, network.onnx_graph)
    return network if model.scaling is None else _with_scaling(network, model.scaling)


def _with_scaling(network: Network, scaling: Scaling) -> Network:
    """Return a network whose first layer scales the inputs, or has a layer before it that does."""
    from sparsenn.io.importers.rounding import check_rounding
    from sparsenn.io.importers.signal import inputs

    shape, first, rest = network.shapes[0], network[0], network.nodes
    factor, addend = (numbers.reshape(shape) for numbers in scaling.affine(network.inputs, network.image))
    signal = inputs(shape, "").times(factor).plus(addend)
    if network.consumers[0] == (1,) and isinstance(first, Linear | SparseLinear):
        is_sparse = isinstance(first, SparseLinear)
        weights = first.weights.to_scipy() if isinstance(first, SparseLinear) else first.weights
        signal = replace(signal, sparse_below=np.inf if is_sparse else 0.0).connected(weights, first.bias_vector())
        signal, rest = signal.activated(first.activation), rest[1:]
    scaled = signal.settled().network()
    before: list[Node] = list(scaled.nodes)
    if scaled.shapes[-1] != network.shapes[len(network) - len(rest)]:
        before.append(Node(Slice(0, network.inputs, network.image), (len(before),)))
    moved = len(before) - (len(network) - len(rest))
    after = (Node(node.layer, tuple(source + moved for source in node.sources)) for node in rest)
    return check_rounding(replace(network, nodes=(*before, *after)), signal.entering)
