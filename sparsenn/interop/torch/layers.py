"""PyTorch's `Linear` and `Conv2d`, computed by sessions.

A module stays the object that it is, with its parameters, hooks and name; only its class changes, to one that is
derived from its own. So all that holds the module, or reads its parameters, goes on as before.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.autograd.forward_ad import unpack_dual
from torch.autograd.graph import increment_version
from torch.nn.utils import parametrize, prune
from torch.optim.optimizer import register_optimizer_step_post_hook

from sparsenn.interop.torch.operator import SHORT, Parameters, run
from sparsenn.interop.torch.runner import LayerRunner, masked

KINDS = (nn.Linear, nn.Conv2d)  # modules that can be computed by a session

_TYPES = (torch.float32, *SHORT)
_DEVICES = ("cpu", "cuda")
_CONVOLUTION = ("stride", "padding", "dilation", "groups")


class _Computed:
    """The base, before the former class, of a converted module."""

    _kind: Any
    _runner: LayerRunner

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the outputs, for rows of any leading shape or for images, in the type of the rows.

        PyTorch's own forward runs where a gradient is recorded, and for rows that no session takes. A call like an
        earlier one goes straight to its session; when PyTorch compiles or traces, all calls are operators.
        """
        if not torch.compiler.is_compiling():
            settled = self._runner.settled_outputs(self, rows)
            if settled is not None:
                return settled
        parameters = parameters_of(self)
        if _needs_pytorch(self, rows, parameters):
            own: torch.Tensor = self._kind.forward(self, rows)
            return own
        if torch.is_autocast_enabled(rows.device.type):
            rows = rows.to(torch.get_autocast_dtype(rows.device.type))
        axes = 1 if self._runner.convolution is None else 3
        shape = rows.shape[:-axes]
        outputs = run(rows.reshape(-1, *rows.shape[-axes:]), parameters, self._runner.number)
        if axes == 1 and not torch.compiler.is_compiling():
            self._runner.settle(rows, parameters)
        if axes == 1:
            return outputs.reshape(*shape, self.out_features)  # type: ignore[attr-defined]
        return outputs.reshape(*shape, self.out_channels, *_pixels(self, rows))  # type: ignore[attr-defined]

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return _blank, (self._kind,), self.__getstate__()


@cache
def _class_of(kind: Any) -> Any:
    """Return a class of modules that are computed by a session, and are else of this kind."""
    return type(f"Sparse{kind.__name__}", (_Computed, kind), {"_kind": kind, "__module__": __name__})


def _blank(kind: Any) -> Any:
    """Return a converted module without attributes, for unpickling."""
    made = _class_of(kind)
    return made.__new__(made)


def _no_fast_path(module: Any, rows: Any) -> None:
    """Stand among a module's hooks: `TransformerEncoderLayer` then calls it, and does not read its weights."""


def convert(module: Any, runner: LayerRunner, parent: Any) -> None:
    """Have a module, of which `why_not` says nothing, computed by a runner."""
    kind: Any = type(module)
    module._runner, module.__class__ = runner, _class_of(kind)
    if isinstance(parent, nn.TransformerEncoderLayer):
        module.register_forward_pre_hook(_no_fast_path)


def restore(module: Any) -> None:
    """Make a converted module what it was."""
    hooks = module._forward_pre_hooks
    for key, hook in list(hooks.items()):
        if hook is _no_fast_path:
            del hooks[key]
    module.__class__ = _without_session(type(module))
    del module._runner


def _without_session(kind: Any) -> Any:
    """Return the class that a converted module was of, or would be, where PyTorch has derived another one since.

    `torch.nn.utils.parametrize` derives one, whose properties stand for parameters.
    """
    if kind is _class_of(kind._kind):
        return kind._kind
    (base,) = kind.__bases__
    own = {name: value for name, value in vars(kind).items() if name not in ("__dict__", "__weakref__")}
    return type(kind.__name__.replace("Sparse", "", 1), (_without_session(base),), own)


def sparse_modules(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the converted modules within a module, itself included, by their names."""
    for name, each in module.named_modules():
        if isinstance(each, _Computed):
            yield name, each


def why_not(module: Any, parent: Any) -> str | None:
    """Return why a `Linear` or `Conv2d` can't be computed by a session; None if it can."""
    kind = nn.Conv2d if isinstance(module, nn.Conv2d) else nn.Linear
    if parametrize.is_parametrized(module):
        return "parametrized: torch.nn.utils.parametrize.remove_parametrizations first"
    if isinstance(parent, nn.MultiheadAttention):
        return "MultiheadAttention reads its weights, and does not call it"
    methods = {name for name in ("forward", "_conv_forward") if hasattr(kind, name)}
    if any(name in vars(module) or getattr(type(module), name) is not getattr(kind, name) for name in methods):
        return "it has a forward of its own"
    hooks = [hook for hook in module._forward_pre_hooks.values() if type(hook).__module__.startswith("torch.nn.utils.")]
    if not all(isinstance(hook, prune.BasePruningMethod) for hook in hooks):
        return "hooks compute its weights at each call; remove these first"
    if kind is nn.Conv2d and module.padding_mode != "zeros":
        return f"it pads by {module.padding_mode!r}"
    for tensor in parameters_of(module):
        if tensor is None:
            continue
        if nn.parameter.is_lazy(tensor) or type(tensor) not in (torch.Tensor, nn.Parameter):
            return f"its parameters are of type {type(tensor).__name__}"
        if tensor.layout != torch.strided or tensor.dtype not in _TYPES or tensor.device.type not in _DEVICES:
            return f"its parameters are {tensor.dtype}, {tensor.layout}, on {tensor.device}"
        if not tensor.numel() or not tensor.detach().isfinite().all():
            return "its parameters are empty, or not finite"
    return None


def density(module: Any) -> float:
    """Return the share of a module's weights that are not zero."""
    weight = masked(*parameters_of(module)[:2])
    share: float = float(weight.count_nonzero()) / max(1, weight.numel())
    return share


def parameters_of(module: Any) -> Parameters:
    """Return weight, its mask, bias and its mask; None where the module has none."""
    found: list[Any] = []
    for name in ("weight", "bias"):
        is_masked = f"{name}_mask" in module._buffers
        found += [getattr(module, f"{name}_orig") if is_masked else getattr(module, name)]
        found += [getattr(module, f"{name}_mask") if is_masked else None]
    return tuple(found)


def convolution_of(module: Any) -> Mapping[str, Any] | None:
    """Return what a convolution takes besides its weights; None for a fully connected layer."""
    if not isinstance(module, nn.Conv2d):
        return None
    return {name: getattr(module, name) for name in _CONVOLUTION}


def _count_step(optimizer: torch.optim.Optimizer, *arguments: Any) -> None:
    """Raise the versions of parameters that a fused optimizer has changed, as others do."""
    for group in optimizer.param_groups:
        if group.get("fused"):
            increment_version([each for each in group["params"] if each.grad is not None])


register_optimizer_step_post_hook(_count_step)


def _needs_pytorch(module: Any, rows: torch.Tensor, parameters: Parameters) -> bool:
    """Return whether PyTorch's own forward has to run, which also reports what is wrong with rows."""
    weight = parameters[0]
    if not isinstance(weight, nn.Parameter):  # `DataParallel` and `functional_call` have others in its place
        return True
    if convolution_of(module) != module._runner.convolution:  # which somebody has changed
        return True
    if torch.is_grad_enabled() and (
        rows.requires_grad or any(each is not None and each.requires_grad for each in parameters)
    ):
        if not torch.compiler.is_compiling():
            warnings.warn(_GRADIENT, stacklevel=2)
        return True
    return not _fits(module, rows, weight) or unpack_dual(rows).tangent is not None


_GRADIENT = (
    "a gradient is recorded, so PyTorch computes the modules that sparsenn.torch.sparsify replaced: call the model "
    "under torch.inference_mode() or torch.no_grad()"
)


def _fits(module: Any, rows: torch.Tensor, weight: torch.Tensor) -> bool:
    """Return whether a session takes rows."""
    if rows.is_nested or rows.layout != torch.strided or rows.dtype not in _TYPES or weight.dtype not in _TYPES:
        return False
    if rows.device != weight.device or rows.device.type not in _DEVICES:
        return False
    if rows.dtype != weight.dtype and not torch.is_autocast_enabled(rows.device.type):
        return False
    if isinstance(module, nn.Linear):
        return rows.ndim > 0 and bool(rows.shape[-1] == module.in_features)
    return rows.ndim in (3, 4) and bool(rows.shape[-3] == module.in_channels) and min(_pixels(module, rows)) > 0


def _pixels(module: Any, images: torch.Tensor) -> tuple[int, int]:
    """Return the height and width of a convolution's outputs."""
    if module.padding == "same":
        return images.shape[-2], images.shape[-1]
    around = (0, 0) if module.padding == "valid" else module.padding

    def size(axis: int) -> int:
        window = module.dilation[axis] * (module.kernel_size[axis] - 1) + 1
        made: int = (images.shape[axis - 2] + 2 * around[axis] - window) // module.stride[axis] + 1
        return made

    return size(0), size(1)
