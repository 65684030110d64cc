"""PyTorch modules with a forward of their own: the graph that `torch.export` makes of them, told to a chain of layers.

What is computed from weights and constants alone is computed by PyTorch. What is left must be one line of operators
from the input to the output.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from math import prod
from typing import Any, TypeAlias

import torch

from sparsenn.errors import InputError
from sparsenn.io.foreign_arrays import host_array, host_matrix
from sparsenn.io.torch_operators import TorchChain
from sparsenn.layers import AvgPool2d, ReLU, Sigmoid, Tanh

__all__ = ["tell_exported"]

Arguments: TypeAlias = dict[str, Any]
"""An operator's arguments by the names of its schema; that which comes from the input is None."""

Operator: TypeAlias = Callable[[TorchChain, str, Arguments], None]


def tell_exported(chain: TorchChain, module: Any, example: Any) -> None:
    """Tell a chain what a module does with one batch of inputs.

    Parameters
    ----------
    chain : with the shape of one input, and no layers.
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
    named = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
    known: dict[Any, Any] = {}  # nodes that do not depend on the input
    flow = None
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name in named:
            tensors = program.constants if named[node.name] in program.constants else program.state_dict
            known[node] = tensors[named[node.name]]
        elif node.op == "placeholder":
            flow = node
        elif node.op == "output":
            if list(node.args[0]) != [flow]:
                raise InputError(f"{type(module).__name__}: gives {len(node.args[0])} outputs; one is needed, the last")
        elif all(given in known for given in node.all_input_nodes):
            known[node] = _computed(node, known)
        elif not str(node.target).startswith("aten._assert"):
            _tell(chain, node, flow, known)
            flow = node


def _computed(node: Any, known: dict[Any, Any]) -> Any:
    """Return what an operator makes of tensors that are known."""
    arguments, options = torch.fx.node.map_arg((node.args, node.kwargs), known.__getitem__)
    try:
        return node.target(*arguments, **options)
    except Exception as error:
        raise InputError(f"{_place(node)}: cannot be computed beforehand ({error})") from error


def _tell(chain: TorchChain, node: Any, flow: Any, known: dict[Any, Any]) -> None:
    """Tell a chain of one operator on what the last one gave."""
    place = _place(node)
    used: list[Any] = []
    torch.fx.node.map_arg((node.args, node.kwargs), used.append)
    others = [given for given in used if given not in known]
    if others != [flow]:
        raise InputError(
            f"{place}: takes {len(others)} results of layers before it; here each layer takes the last one's, once"
        )
    name = node.target.overloadpacket.__name__.rstrip("_") if hasattr(node.target, "overloadpacket") else ""
    operator = _OPERATORS.get(name)
    if operator is None:
        raise InputError(f"{place}: no layer here computes it; give a module without it")
    values = torch.fx.node.map_arg((node.args, node.kwargs), lambda given: known.get(given))
    arguments = {argument.name: argument.default_value for argument in node.target._schema.arguments}
    arguments.update(zip(arguments, values[0], strict=False))
    arguments.update(values[1])
    arguments["given"], arguments["made"] = (tuple(each.meta["val"].shape) for each in (flow, node))
    operator(chain, place, arguments)


def _place(node: Any) -> str:
    """Return where an operator is in the module, and which it is."""
    stack = list(node.meta.get("nn_module_stack", {}).values())
    path = str(stack[-1][0]) if stack else ""
    return f"{path or node.name} ({node.target})"


def _convolution(chain: TorchChain, name: str, at: Arguments) -> None:
    chain.convolution(name, at["weight"], at["bias"], at["stride"], at["padding"], at["dilation"], at["groups"])


def _batch_norm(chain: TorchChain, name: str, at: Arguments) -> None:
    chain.batch_norm(name, at["weight"], at["bias"], at["running_mean"], at["running_var"], at["eps"])


def _max_pool(dimensions: int) -> Operator:
    return lambda chain, name, at: chain.max_pool(
        name, dimensions, at["kernel_size"], at["stride"], at["padding"], at["dilation"], at["ceil_mode"]
    )


def _average_pool(dimensions: int) -> Operator:
    return lambda chain, name, at: chain.average_pool(
        name,
        dimensions,
        at["kernel_size"],
        at["stride"],
        at["padding"],
        at["ceil_mode"],
        at["count_include_pad"],
        at.get("divisor_override"),
    )


def _adaptive_pool(dimensions: int) -> Operator:
    return lambda chain, name, at: chain.adaptive_pool(name, dimensions, AvgPool2d, at["output_size"])


def _mean(chain: TorchChain, name: str, at: Arguments) -> None:
    """Take the mean of each channel."""
    rank = len(at["given"])
    if sorted(dimension % rank for dimension in at["dim"] or ()) != list(range(2, rank)) or rank < 3:
        raise InputError(f"{name}: a mean over dimensions {at['dim']}; that over all pixels is known here")
    chain.adaptive_pool(name, rank - 2, AvgPool2d, 1)
    if not at["keepdim"]:
        chain.flatten()


def _reshape(chain: TorchChain, name: str, at: Arguments) -> None:
    """Make rows of images, or images of the inputs."""
    given, made = at["given"], at["made"]
    if given[0] != made[0] or prod(given) != prod(made):
        raise InputError(f"{name}: makes {made} of {given}; inputs must stay apart")
    if len(made) == 2:
        chain.flatten()
    elif given != made:
        chain.become(name, made[1:])


def _product(chain: TorchChain, name: str, at: Arguments) -> None:
    """Multiply rows by a matrix; the operators call the two of them by different names."""
    if at.get("self") is not None or len(at["given"]) != 2:
        raise InputError(f"{name}: multiplies from the left, or images; rows times a matrix is known here")
    weights = at.get("other") if "other" in at else at["mat2"]
    chain.connect(name, host_matrix(f"matrix of {name}", weights))


def _added_product(chain: TorchChain, name: str, at: Arguments) -> None:
    if at["mat1"] is not None or at["mat2"] is None or at["self"] is None or (at["alpha"], at["beta"]) != (1, 1):
        raise InputError(f"{name}: is no product of rows and a matrix plus a bias")
    chain.connect(name, host_matrix(f"matrix of {name}", at["mat2"]), host_array(f"bias of {name}", at["self"]))


def _scaling(factor: bool, inverse: bool) -> Operator:
    """Return what multiplies or adds a constant, or its inverse."""

    def tell(chain: TorchChain, name: str, at: Arguments) -> None:
        left, right = at["self"], at["other"]
        if left is not None and inverse and factor:
            raise InputError(f"{name}: divides by what a layer gives; no layer here does")
        constant = _by_channel(name, right if left is None else left, at["given"]) * at.get("alpha", 1)
        if factor:
            chain.scale(name, 1 / constant if inverse else constant, 0.0)
        elif left is None:
            chain.scale(name, 1.0, -constant if inverse else constant)
        elif at.get("alpha", 1) == 1:
            chain.scale(name, -1.0 if inverse else 1.0, constant)
        else:
            raise InputError(f"{name}: adds a multiple of what a layer gives to a constant; only 1 is known here")

    return tell


def _difference(chain: TorchChain, name: str, at: Arguments) -> None:
    """Subtract from a constant."""
    chain.scale(name, -at["alpha"], _by_channel(name, at["other"], at["given"]))


def _by_channel(name: str, constant: Any, given: tuple[int, ...]) -> Any:
    """Return a constant that is one number, or one for each channel, as such."""
    array = host_array(f"constant of {name}", constant)
    shape = (1,) * (len(given) - array.ndim) + array.shape
    if any(size != 1 for axis, size in enumerate(shape) if axis != 1) or len(shape) != len(given):
        raise InputError(f"{name}: a constant of shape {array.shape}; one number, or one a channel, is known here")
    return array.reshape(-1)[0] if array.size == 1 else array.reshape(-1)


def _dropout(chain: TorchChain, name: str, at: Arguments) -> None:
    if at["train"]:
        raise InputError(f"{name}: drops numbers at random although the module is evaluated")


def _does_nothing(chain: TorchChain, name: str, at: Arguments) -> None:
    """Leave out what gives the same numbers."""


_OPERATORS: dict[str, Operator] = {
    "linear": lambda chain, name, at: chain.linear(name, at["weight"], at["bias"]),
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
    "relu": lambda chain, name, at: chain.activate(name, ReLU()),
    "relu6": lambda chain, name, at: chain.clip(name, 0.0, 6.0),
    "hardtanh": lambda chain, name, at: chain.clip(name, at["min_val"], at["max_val"]),
    "clamp": lambda chain, name, at: chain.clip(name, at["min"], at["max"]),
    "clamp_min": lambda chain, name, at: chain.clip(name, at["min"], None),
    "clamp_max": lambda chain, name, at: chain.clip(name, None, at["max"]),
    "hardsigmoid": lambda chain, name, at: chain.hard_sigmoid(name),
    "leaky_relu": lambda chain, name, at: chain.leak(name, at["negative_slope"]),
    "prelu": lambda chain, name, at: chain.parametric_relu(name, at["weight"]),
    "sigmoid": lambda chain, name, at: chain.activate(name, Sigmoid()),
    "tanh": lambda chain, name, at: chain.activate(name, Tanh()),
    "softmax": lambda chain, name, at: chain.softmax_over(name, at["dim"]),
    "mul": _scaling(factor=True, inverse=False),
    "div": _scaling(factor=True, inverse=True),
    "add": _scaling(factor=False, inverse=False),
    "sub": _scaling(factor=False, inverse=True),
    "rsub": _difference,
    "neg": lambda chain, name, at: chain.scale(name, -1.0, 0.0),
    **dict.fromkeys(("flatten", "view", "reshape", "_unsafe_view", "unflatten", "squeeze", "unsqueeze"), _reshape),
    **dict.fromkeys(("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"), _dropout),
    **dict.fromkeys(("contiguous", "clone", "alias", "detach", "detach_"), _does_nothing),
}
"""What tells a chain of each operator, by its name without `aten` and overload."""
