"""PyTorch modules with a forward of their own: the graph that `torch.export` makes of them.

What is computed from weights and constants alone is computed by PyTorch. What is left must lead from the one input
to the one output; sums and concatenations may join branches.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from math import prod
from typing import Any, TypeAlias

import torch

from sparsenn.errors import InputError
from sparsenn.io import torch_operators as operators
from sparsenn.io.foreign_arrays import host_array, host_matrix
from sparsenn.io.joining import joined
from sparsenn.io.signal import Signal, named
from sparsenn.layers import Add, AvgPool2d, Concatenate, LogSoftmax
from sparsenn.layers.activation_names import names_elsewhere

__all__ = ["exported"]

Arguments: TypeAlias = dict[str, Any]
"""An operator's arguments by the names of its schema; that which comes from the input is None."""

Operator: TypeAlias = Callable[[Signal, Arguments], Signal]


def exported(signal: Signal, module: Any, example: Any) -> Signal:
    """Return what a module makes of one batch of inputs.

    Parameters
    ----------
    signal : with the shape of one input, and no layers.
    module : a `torch.nn.Module` in evaluation mode.
    example : a batch of inputs.

    Raises
    ------
    InputError
        The module cannot be exported, has another form, or computes what no layer does; the message names where.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as that pruning assigns weights
            program = torch.export.export(module, (example,))
    except Exception as error:  # of any kind: the module's own code runs
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise InputError(f"torch.export cannot make a graph of {type(module).__name__}: {reason}") from error
    signature = program.graph_signature
    parameters = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
    known: dict[Any, Any] = {}  # nodes that do not depend on the input
    signals: dict[Any, Signal] = {}
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name in parameters:
            tensors = program.constants if parameters[node.name] in program.constants else program.state_dict
            known[node] = tensors[parameters[node.name]]
        elif node.op == "placeholder":
            signals[node] = signal
        elif node.op == "output":
            if len(node.args[0]) != 1 or node.args[0][0] not in signals:
                raise InputError(f"{type(module).__name__}: gives {len(node.args[0])} outputs; one is needed")
            signal = signals[node.args[0][0]]
        elif all(given in known for given in node.all_input_nodes):
            known[node] = _computed(node, known)
        elif not str(node.target).startswith("aten._assert"):
            with named(_place(node)):
                signals[node] = _made(node, signals, known)
    return signal


def _computed(node: Any, known: dict[Any, Any]) -> Any:
    """Return what an operator makes of tensors that are known."""
    arguments, options = torch.fx.node.map_arg((node.args, node.kwargs), known.__getitem__)
    try:
        return node.target(*arguments, **options)
    except Exception as error:
        raise InputError(f"{_place(node)}: cannot be computed beforehand ({error})") from error


def _made(node: Any, signals: dict[Any, Signal], known: dict[Any, Any]) -> Signal:
    """Return what one operator makes of what others gave."""
    used: list[Any] = []
    torch.fx.node.map_arg((node.args, node.kwargs), used.append)
    flows = [given for given in used if given in signals]
    name = node.target.overloadpacket.__name__.rstrip("_") if hasattr(node.target, "overloadpacket") else ""
    if len(flows) > 1 or name == "cat":
        return _of_several(name, node, [signals[flow] for flow in flows])
    (flow,) = flows
    operator = _OPERATORS.get(name)
    if operator is None:
        raise InputError("has no counterpart in sparsenn; give a module without it")
    values = torch.fx.node.map_arg((node.args, node.kwargs), lambda given: known.get(given))
    arguments = {argument.name: argument.default_value for argument in node.target._schema.arguments}
    arguments.update(zip(arguments, values[0], strict=False))
    arguments.update(values[1])
    arguments["given"], arguments["made"] = (tuple(each.meta["val"].shape) for each in (flow, node))
    return operator(signals[flow], arguments)


def _of_several(name: str, node: Any, signals: list[Signal]) -> Signal:
    """Return a sum of two signals, or several as channels or features of one."""
    if name == "cat" and len(node.args[0]) == len(signals):
        dimension = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
        if dimension not in (1, 1 - signals[0].rank):
            raise InputError(f"concatenates along dimension {dimension}; only channels or features can be concatenated")
        return joined(signals, Concatenate(len(signals))) if len(signals) > 1 else signals[0]
    factor = float(node.kwargs.get("alpha", 1)) * {"add": 1, "sub": -1}.get(name, 0)
    if not factor:
        raise InputError(f"takes the results of {len(signals)} layers; only sums and concatenations are supported")
    first, second = signals
    return joined([first, second.times(factor)], Add())


def _place(node: Any) -> str:
    """Return where an operator is in the module, and which it is."""
    stack = list(node.meta.get("nn_module_stack", {}).values())
    path = str(stack[-1][0]) if stack else ""
    return f"{path or node.name} ({node.target})"


def _convolution(signal: Signal, at: Arguments) -> Signal:
    return operators.convolution(
        signal, at["weight"], at["bias"], at["stride"], at["padding"], at["dilation"], at["groups"]
    )


def _batch_norm(signal: Signal, at: Arguments) -> Signal:
    return operators.batch_norm(signal, at["weight"], at["bias"], at["running_mean"], at["running_var"], at["eps"])


def _max_pool(dimensions: int) -> Operator:
    return lambda signal, at: operators.max_pool(
        signal, dimensions, at["kernel_size"], at["stride"], at["padding"], at["dilation"], at["ceil_mode"]
    )


def _average_pool(dimensions: int) -> Operator:
    return lambda signal, at: operators.average_pool(
        signal,
        dimensions,
        at["kernel_size"],
        at["stride"],
        at["padding"],
        at["ceil_mode"],
        at["count_include_pad"],
        at.get("divisor_override"),
    )


def _adaptive_pool(dimensions: int) -> Operator:
    return lambda signal, at: operators.adaptive_pool(signal, dimensions, AvgPool2d, at["output_size"])


def _mean(signal: Signal, at: Arguments) -> Signal:
    """Return the mean of each channel."""
    rank = len(at["given"])
    if sorted(dimension % rank for dimension in at["dim"] or ()) != list(range(2, rank)) or rank < 3:
        raise InputError(f"it takes the mean over dimensions {at['dim']}; only a mean over all pixels is supported")
    means = operators.adaptive_pool(signal, rank - 2, AvgPool2d, 1)
    return means if at["keepdim"] else means.flattened()


def _reshape(signal: Signal, at: Arguments) -> Signal:
    """Return rows of images, or images of the inputs."""
    given, made = at["given"], at["made"]
    if given[0] != made[0] or prod(given) != prod(made):
        raise InputError(f"makes {made} of {given}; samples must not be mixed")
    if len(made) == 2:
        return signal.flattened()
    return signal if given == made else signal.become(made[1:])


def _product(signal: Signal, at: Arguments) -> Signal:
    """Return rows times a matrix; the operators call the two of them by different names."""
    if at.get("self") is not None or len(at["given"]) != 2:
        raise InputError("multiplies from the left, or images; only rows times a matrix is supported")
    weights = at.get("other") if "other" in at else at["mat2"]
    return signal.connected(host_matrix("matrix", weights))


def _added_product(signal: Signal, at: Arguments) -> Signal:
    if at["mat1"] is not None or at["mat2"] is None or at["self"] is None or (at["alpha"], at["beta"]) != (1, 1):
        raise InputError("is not a product of rows and a matrix plus a bias")
    return signal.connected(host_matrix("matrix", at["mat2"]), host_array("bias", at["self"]))


def _scaling(factor: bool, inverse: bool) -> Operator:
    """Return what multiplies or adds a constant, or its inverse."""

    def scaled(signal: Signal, at: Arguments) -> Signal:
        left, right = at["self"], at["other"]
        if left is not None and inverse and factor:
            raise InputError("divides by a layer's output; no layer of sparsenn does")
        constant = _by_channel(right if left is None else left, at["given"]) * at.get("alpha", 1)
        if factor:
            return signal.scaled(1 / constant if inverse else constant, 0.0)
        if left is None:
            return signal.scaled(1.0, -constant if inverse else constant)
        if at.get("alpha", 1) == 1:
            return signal.scaled(-1.0 if inverse else 1.0, constant)
        raise InputError("adds a multiple of a layer's output to a constant; only a factor of 1 is supported")

    return scaled


def _difference(signal: Signal, at: Arguments) -> Signal:
    """Return the difference from a constant."""
    return signal.scaled(-at["alpha"], _by_channel(at["other"], at["given"]))


def _by_channel(constant: Any, given: tuple[int, ...]) -> Any:
    """Return a constant that is one number, or one for each channel, as such."""
    array = host_array("constant", constant)
    shape = (1,) * (len(given) - array.ndim) + array.shape
    if any(size != 1 for axis, size in enumerate(shape) if axis != 1) or len(shape) != len(given):
        raise InputError(f"a constant of shape {array.shape}; one number, or one per channel, is supported")
    return array.reshape(-1)[0] if array.size == 1 else array.reshape(-1)


def _dropout(signal: Signal, at: Arguments) -> Signal:
    if at["train"]:
        raise InputError("drops numbers at random although the module is evaluated")
    return signal


def _does_nothing(signal: Signal, at: Arguments) -> Signal:
    """Return it as it is: the operator gives the same numbers."""
    return signal


def _elementwise(name: str) -> Operator:
    return lambda signal, at: operators.elementwise(signal, "aten", name, lambda key, _: at[key])


_OPERATORS: dict[str, Operator] = {
    **{name: _elementwise(name) for name in names_elsewhere("aten")},
    "linear": lambda signal, at: operators.linear(signal, at["weight"], at["bias"]),
    "matmul": _product,
    "mm": _product,
    "addmm": _added_product,
    "conv1d": _convolution,
    "conv2d": _convolution,
    "batch_norm": _batch_norm,
    "max_pool1d": _max_pool(1),
    "max_pool2d": _max_pool(2),
    "avg_pool1d": _average_pool(1),
    "avg_pool2d": _average_pool(2),
    "adaptive_avg_pool1d": _adaptive_pool(1),
    "adaptive_avg_pool2d": _adaptive_pool(2),
    "mean": _mean,
    "pad": lambda signal, at: operators.pad(signal, at["pad"], at["mode"], at["value"]),
    "constant_pad_nd": lambda signal, at: operators.pad(signal, at["pad"], value=at["value"]),
    "relu6": lambda signal, at: signal.clipped(0.0, 6.0),
    "hardtanh": lambda signal, at: signal.clipped(at["min_val"], at["max_val"]),
    "clamp": lambda signal, at: signal.clipped(at["min"], at["max"]),
    "clamp_min": lambda signal, at: signal.clipped(at["min"], None),
    "clamp_max": lambda signal, at: signal.clipped(None, at["max"]),
    "prelu": lambda signal, at: operators.parametric_relu(signal, at["weight"]),
    "softmax": lambda signal, at: operators.softmax(signal, at["dim"]),
    "log_softmax": lambda signal, at: operators.softmax(signal, at["dim"], LogSoftmax()),
    "mul": _scaling(factor=True, inverse=False),
    "div": _scaling(factor=True, inverse=True),
    "add": _scaling(factor=False, inverse=False),
    "sub": _scaling(factor=False, inverse=True),
    "rsub": _difference,
    "neg": lambda signal, at: signal.scaled(-1.0, 0.0),
    **dict.fromkeys(("flatten", "view", "reshape", "_unsafe_view", "unflatten", "squeeze", "unsqueeze"), _reshape),
    **dict.fromkeys(("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"), _dropout),
    **dict.fromkeys(("contiguous", "clone", "alias", "detach", "detach_"), _does_nothing),
}
"""What each operator makes of a signal, by its name without `aten` and overload."""
