"""Networks of PyTorch's modules. PyTorch is the user's own: no module exists without it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from inspect import signature
from typing import Any

from sparsenn.errors import InputError, UsageError, prefix_errors
from sparsenn.io.importers.combinations import combined, network_between
from sparsenn.io.importers.rounding import check_rounding
from sparsenn.io.importers.signal import Signal, inputs
from sparsenn.io.importers.torch import movements, operators
from sparsenn.layers import Add, LogSoftmax, Softmax, Tanh
from sparsenn.layers.activation_names import names_elsewhere
from sparsenn.layers.sparse_or_dense import SPARSE_BELOW
from sparsenn.network import Network
from sparsenn.printable import kind_of
from sparsenn.structure.onnx_graph import with_own_graph

_HINT = "give a batch of inputs, as in from_torch(module, example)"


_OTHERWISE = (
    "sparsenn.torch.sparsify(module) computes its pruned layers and leaves the rest to PyTorch; "
    'from_torch(module, example, through="onnx") leaves it to ONNX Runtime'
)


def from_torch(
    module: Any, example: Any = None, *, sparse_below: float = SPARSE_BELOW, through: str | None = None
) -> Network:
    """Return a PyTorch module as a network that computes what the module does in evaluation mode.

    Known are `Linear`, `Conv1d`, `Conv2d`, `BatchNorm1d`, `BatchNorm2d`, `LayerNorm`, `MaxPool`, `AvgPool` and
    `AdaptiveAvgPool` in one and two dimensions, `ReLU6`, `PReLU`, `Hardtanh`, all modules of activations that
    `sparsenn` has, `Softmax`, `LogSoftmax`, `Softmin`, `Tanhshrink`, `Flatten`, `Unflatten` of inputs,
    `ChannelShuffle`, padding with zeros, and what does nothing when a module is evaluated. Masks of
    `torch.nn.utils.prune` are applied, and weights may be sparse tensors of any layout. A `Sequential` of these is read
    module by module, each as often as it stands there; what else there is, by `torch.export`, for which an example is
    needed. What depends on the number of rows, or changes the module at each call, is refused.

    Parameters
    ----------
    module : torch.nn.Module or torch.export.ExportedProgram
        The module; it stays as it is. One that is exported has dynamic shapes, by which its rows are any number.
    example : torch.Tensor, or tuple or dict of str to torch.Tensor, optional
        A batch of inputs, of which the shape counts; needed where convolutions or pools come first, and for modules
        with a `forward` of their own. Several inputs of a module come in a tuple, or by the names of its arguments,
        which the network calls them by.
    sparse_below : float, default 0.5
        A fully connected layer in which a smaller share of weights is not zero becomes sparse.
    through : {"onnx"}, optional
        Have `torch.onnx.export` make an ONNX graph of the module, by its newer exporter where onnxscript is installed,
        and read that as `from_onnx` does: what has no layer here, ONNX Runtime computes. It needs an example.

    Returns
    -------
    Network
        Its `image` is (channels, height, width) where it takes images. Where the module gives several outputs, they
        have names: the keys of a dictionary, the fields of a named tuple, or `output_0`, `output_1`, ….

    Raises
    ------
    InputError
        The module computes something that no layer here does; the message names the module's part, and what else there
        is: `sparsenn.torch.sparsify`, and `through`.
    UsageError
        PyTorch is not installed, the argument is not a module, or there is no other format of that name or no example
        for it.
    """
    try:
        import torch
    except ImportError as error:
        raise UsageError("from_torch takes a module of PyTorch, which is not installed here") from error
    if through is not None and (through != "onnx" or example is None):
        raise UsageError(f'through is {through!r}; give "onnx", and an example of the inputs')
    if isinstance(module, torch.export.ExportedProgram):
        from sparsenn.io.importers.torch.graph import exported

        return _finished(*network_between(*exported(module, (), lambda shape: inputs(shape, _HINT, sparse_below))))
    if not isinstance(module, torch.nn.Module):
        raise UsageError(f"{kind_of(module)} is not a torch.nn.Module; from_weights takes a state dict")
    wrappers = torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel, torch.optim.swa_utils.AveragedModel
    while (is_compiled := type(module).__name__ == "OptimizedModule") or isinstance(module, wrappers):
        module = module._orig_mod if is_compiled else module.module
    if isinstance(module, torch.jit.ScriptModule) and through is None:
        raise InputError(
            "a TorchScript module cannot be inspected; give the module it was made from, "
            'or through="onnx" and an example'
        )
    if any(type(each).__module__ == "sparsenn.interop.torch.layers" for each in module.modules()):
        raise UsageError("sparsenn.torch.sparsify has replaced modules of it; call sparsenn.torch.desparsify first")
    several = isinstance(example, tuple | dict)
    batches = () if example is None else example if several else (example,)
    tensors = batches.values() if isinstance(batches, dict) else batches
    shapes = [tuple(getattr(each, "shape", ())) for each in tensors]
    if any(len(shape) < 2 for shape in shapes) or (several and not shapes):
        raise UsageError("the example is not a batch of inputs; give a tensor whose first dimension counts them")
    with torch.no_grad(), evaluated(module):
        if through is not None:
            from sparsenn.io.importers.torch.through_onnx import network_through_onnx

            return network_through_onnx(module, batches, sparse_below)
        try:
            return _read(module, batches, several, shapes[0][1:] if shapes else None, sparse_below)
        except InputError as error:
            raise type(error)(f"{error}; {_OTHERWISE}") from error


def _read(module: Any, batches: Any, several: bool, shape: tuple[int, ...] | None, sparse_below: float) -> Network:
    signal = inputs(shape, _HINT, sparse_below)
    parts = [
        (
            f"{name or 'the module'} ({_kind(part).__name__})",
            part,
            None if _is_own(part) else _READERS.get(_kind(part).__name__),
        )
        for name, part in _parts("", module)
    ]
    unknown = next(((name, part) for name, part, reader in parts if reader is None), None)
    if unknown is None and not several:
        _apply_masks(module)
        for name, part, reader in parts:
            assert reader is not None, "every part has one"
            with prefix_errors(name):
                signal = reader(signal, part)
        return _finished(signal.network(), signal.entering)
    if unknown is not None and not batches:
        name, part = unknown
        raise InputError(f"{name}: {_why_unread(part)}")
    from sparsenn.io.importers.torch.graph import exported

    try:
        signals = exported(module, batches, lambda shape: inputs(shape, _HINT, sparse_below))
    finally:
        _apply_masks(module)  # which are no numbers while a graph is made
    return _finished(*network_between(*signals))


def _finished(network: Network, entering: Any) -> Network:
    return with_own_graph(check_rounding(network, entering))


def _parts(name: str, module: Any) -> Iterator[tuple[str, Any]]:
    """Yield the modules that a Sequential applies one after the other, by their paths, or the module itself."""
    if _kind(module).__name__ != "Sequential" or _is_own(module):
        yield name, module
        return
    for key, part in module._modules.items():  # named_children leaves out a module that stands there a second time
        yield from _parts(f"{name}.{key}" if name else key, part)


def _kind(module: Any) -> type:
    """Return the class of PyTorch's whose forward a module has, or the module's own class where it has its own."""
    kind: Any = type(module)
    found: type = next((each for each in kind.__mro__ if _is_of_torch(each) and each.forward is kind.forward), kind)
    return found


def _is_of_torch(definition: Any) -> bool:
    return str(definition.__module__).startswith("torch.nn.modules.")


_CALLED = (
    *("__call__", "_wrapped_call_impl", "_call_impl", "_slow_forward", "forward", "__getattr__", "__iter__"),
    *("_conv_forward", "_check_input_dim"),
)
"""Methods that PyTorch runs when one of the modules known here is called."""


def _is_own(module: Any) -> bool:
    """Whether a module computes something else than PyTorch's class of its name."""
    kind = type(module)
    if not _is_of_torch(_kind(module)) or module.training:  # which may be by a `train` of its own
        return True
    methods = [name for name in _CALLED if hasattr(kind, name)]
    own = any(name in vars(module) or not _is_of_torch(getattr(kind, name)) for name in methods)
    return own or _has_own_hooks(module)


def _has_own_hooks(module: Any) -> bool:
    """Whether hooks change what a module computes; those that mask or normalise its weights are seen to."""
    every = sys.modules["torch.nn.modules.module"]
    of_all = every._global_forward_hooks or every._global_forward_pre_hooks
    return bool(of_all or module._forward_hooks) or len(_masks(module)) < len(module._forward_pre_hooks)


def _masks(module: Any) -> list[Any]:
    """Return the hooks of PyTorch's that mask or normalise a module's weights when it is called."""
    return [hook for hook in module._forward_pre_hooks.values() if type(hook).__module__.startswith("torch.nn.utils.")]


def _apply_masks(module: Any) -> None:
    """Have the weights of a module and its parts become what they are when it is called."""
    for part in module.modules():
        for hook in _masks(part):
            hook(part, ())


@contextmanager
def evaluated(module: Any) -> Iterator[None]:
    """Have a module, and those in it, in evaluation mode while the block runs."""
    training = [part for part in module.modules() if part.training]
    module.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True


Reader = Callable[[Signal, Any], Signal]


def _why_unread(module: Any) -> str:
    """Return why a module is not read; an example helps where it is made of other modules or operators."""
    if _is_own(module):
        return f"has a forward of its own: {_HINT}"
    if any(module.children()):
        return f"is none of the modules known here: {_HINT}"
    return "has no counterpart in sparsenn; give a module without it"


def _called(function: Callable[..., Signal]) -> Reader:
    """Return the reader of a module whose attributes have the names of the function's parameters."""
    _, *names = signature(function).parameters

    def read(signal: Signal, part: Any) -> Signal:
        return function(signal, **{name: getattr(part, name) for name in names if hasattr(part, name)})

    return read


def _unflatten(signal: Signal, part: Any) -> Signal:
    if part.dim not in (1, -1) or len(part.unflattened_size) not in (2, 3):
        raise InputError(f"makes {part.unflattened_size} of dimension {part.dim}; only rows can become images")
    return signal.become(tuple(part.unflattened_size))


def _elementwise(signal: Signal, part: Any) -> Signal:
    return operators.elementwise(signal, "torch", _kind(part).__name__, lambda name, _: getattr(part, name))


_READERS: dict[str, Reader] = {
    **dict.fromkeys(names_elsewhere("torch"), _elementwise),
    **dict.fromkeys(("Linear", "NonDynamicallyQuantizableLinear"), _called(operators.linear)),
    **dict.fromkeys(("Conv1d", "Conv2d"), _called(operators.convolution)),
    **dict.fromkeys(("BatchNorm1d", "BatchNorm2d"), _called(operators.batch_norm)),
    "LayerNorm": _called(operators.layer_norm),
    **{f"MaxPool{number}d": _called(partial(operators.max_pool, number)) for number in (1, 2)},
    **{f"AvgPool{number}d": _called(partial(operators.average_pool, number)) for number in (1, 2)},
    **{f"AdaptiveAvgPool{number}d": _called(partial(operators.adaptive_pool, number)) for number in (1, 2)},
    **dict.fromkeys(
        ("ZeroPad1d", "ZeroPad2d", "ConstantPad1d", "ConstantPad2d"),
        lambda signal, part: operators.pad(signal, part.padding, part.value),
    ),
    **dict.fromkeys(("ReLU6", "Hardtanh"), lambda signal, part: signal.clipped(part.min_val, part.max_val)),
    "PReLU": _called(operators.parametric_relu),
    "Tanhshrink": lambda signal, part: combined([signal, signal.activated(Tanh()).times(-1.0)], Add()),
    "Softmax": _called(partial(operators.softmax, Softmax())),
    "LogSoftmax": _called(partial(operators.softmax, LogSoftmax())),
    "Softmin": lambda signal, part: operators.softmax(Softmax(), signal.times(-1.0), part.dim),
    "Flatten": _called(operators.flatten),
    "Unflatten": _unflatten,
    "ChannelShuffle": _called(movements.shuffle),
    **dict.fromkeys(
        ("Identity", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout", "FeatureAlphaDropout"),
        lambda signal, part: signal,
    ),
}
"""What each kind of module makes of a signal."""
