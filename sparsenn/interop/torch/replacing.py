"""Which modules of a model sessions compute, by density and by measurement."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from sparsenn.backends import kernels
from sparsenn.backends.kernel_records import CONV_OPERATION, DENSE_OPERATION, SPARSE_OPERATION
from sparsenn.engine.options import read_options
from sparsenn.errors import UsageError, unknown_name
from sparsenn.interop.torch.layers import (
    KINDS,
    convert,
    convolution_of,
    density,
    parameters_of,
    restore,
    sparse_modules,
    why_not,
)
from sparsenn.interop.torch.report import ModuleReport, SparsifyReport
from sparsenn.interop.torch.runner import LayerRunner
from sparsenn.interop.torch.timing import times_in_turns
from sparsenn.io.importers.torch.module import evaluated
from sparsenn.printable import kind_of

GAIN = 0.95
"""The largest share of PyTorch's time that a replaced module takes: clocks are no more exact."""

_OPERATIONS = (SPARSE_OPERATION, DENSE_OPERATION, CONV_OPERATION)
"""Operations whose kernels sessions of modules may run."""

_DEFAULTS = {"check_finite": False}
"""Options that differ from a session's: PyTorch computes with NaN and infinite numbers, too."""


def sparsify_model(
    model: Any, density_below: float, example: Any, inplace: bool, options: Mapping[str, Any]
) -> tuple[Any, SparsifyReport]:
    """Return a model with its sparse modules replaced, and the report; see `sparsenn.torch.sparsify`."""
    _check_model(model, "sparsify")
    if not isinstance(density_below, int | float):
        raise UsageError(f"density_below is {kind_of(density_below)}, no number; pass a batch as example=")
    if not 0 < density_below <= 1:
        raise UsageError(f"density_below is {density_below!r}; give a share of weights, above 0 and up to 1")
    for name in ("device", "machine"):
        if name in options:
            raise UsageError(f"modules run on the device of their rows; leave out {name}")
    options = {**_DEFAULTS, **options}
    kernel = read_options(options).kernel
    registered = (kernels(operation, device) for operation in _OPERATIONS for device in ("cpu", "cuda"))
    names = "auto", *dict.fromkeys(each.name for several in registered for each in several)
    if kernel not in names:
        raise unknown_name("kernel", kernel, names)
    model = desparsify_model(model if inplace else _copied(model))
    reports: dict[str, ModuleReport] = {}
    chosen: dict[str, tuple[Any, LayerRunner, Any]] = {}
    runners: dict[Any, LayerRunner] = {}
    for name, module, parent in _candidates(model):
        reason, share = why_not(module, parent), None
        if reason is None:
            share = density(module)
            reason = None if share < density_below else f"its density is not below {density_below:g}"
        reports[name] = ModuleReport(name, type(module).__name__, share, reason is None, reason or "by its density")
        if reason is None:
            convolution = convolution_of(module)
            tied = *map(id, parameters_of(module)), repr(convolution)
            chosen[name] = module, runners.setdefault(tied, LayerRunner(convolution, options)), parent
    if example is None:
        _convert_all(chosen)
    else:
        with torch.no_grad(), evaluated(model):
            reports.update(_keep_faster(model, chosen, reports, example))
    for name, (module, *_) in chosen.items():
        if "weight_mask" in module._buffers:
            masked = f"{reports[name].reason}; its mask takes a product at each call, until prune.remove"
            reports[name] = replace(reports[name], reason=masked)
    return model, SparsifyReport(tuple(reports.values()))


def _copied(model: Any) -> Any:
    """Return a copy, also of a model with masks, whose products with weights PyTorch does not copy with gradients."""
    for module in model.modules():
        for name in ("weight", "bias"):
            if f"{name}_mask" in module._buffers:
                setattr(module, name, getattr(module, name).detach())  # its hook makes another at the next call
    return copy.deepcopy(model)


def desparsify_model(model: Any) -> Any:
    """Return a model with all replaced modules as they were; see `sparsenn.torch.desparsify`."""
    _check_model(model, "desparsify")
    for _, module in list(sparse_modules(model)):
        restore(module)
    return model


def _check_model(model: Any, function: str) -> None:
    if not isinstance(model, nn.Module):
        raise UsageError(f"{function} takes a torch.nn.Module, not {kind_of(model)}")


def _candidates(model: nn.Module) -> Iterator[tuple[str, Any, Any]]:
    """Yield each `Linear` and `Conv2d` once: its name, itself, and the module that holds it, None for the model."""
    for name, module in model.named_modules():
        if isinstance(module, KINDS):
            yield name, module, model.get_submodule(name.rpartition(".")[0]) if name else None


def _convert_all(chosen: Mapping[str, tuple[Any, LayerRunner, Any]]) -> None:
    for module, runner, parent in chosen.values():
        convert(module, runner, parent)


def _keep_faster(
    model: Any, chosen: Mapping[str, tuple[Any, LayerRunner, Any]], reports: Mapping[str, ModuleReport], example: Any
) -> dict[str, ModuleReport]:
    """Convert the modules that are faster by sessions when a model is called with an example; return their reports."""
    modules = [module for module, *_ in chosen.values()]
    try:
        before, after = times_in_turns(
            model, modules, (partial(desparsify_model, model), partial(_convert_all, chosen)), example
        )
    finally:
        desparsify_model(model)
    found: dict[str, ModuleReport] = {}
    for name, (module, runner, parent) in chosen.items():
        if module not in after:
            found[name] = replace(reports[name], is_replaced=False, reason="the example does not call it")
            continue
        is_faster = after[module] <= GAIN * before[module]
        if is_faster:
            convert(module, runner, parent)
        times = f"{before[module] / after[module]:.2f} times as fast"
        reason = times if is_faster else f"a session would be {times}"
        found[name] = replace(
            reports[name],
            is_replaced=is_faster,
            reason=reason,
            seconds_before=before[module],
            seconds_after=after[module],
        )
    return found
