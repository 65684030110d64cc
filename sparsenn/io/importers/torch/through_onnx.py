"""PyTorch modules as ONNX graphs, in which ONNX Runtime computes what has no layer."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from sparsenn.errors import InputError, UsageError
from sparsenn.io.importers.onnx.files import from_onnx
from sparsenn.io.importers.torch.graph import of_several_rows, output_names
from sparsenn.network import Network
from sparsenn.printable import reason_of


def network_through_onnx(module: Any, example: Sequence[Any] | Mapping[str, Any], sparse_below: float) -> Network:
    """Return the network of the ONNX graph of a module."""
    positional, named = ((), dict(example)) if isinstance(example, Mapping) else (tuple(example), {})
    try:
        bound = _signature(module).bind(
            *map(of_several_rows, positional), **{name: of_several_rows(batch) for name, batch in named.items()}
        )
    except TypeError as error:
        raise UsageError(f"the example does not fit {type(module).__name__}: {error}") from error
    names = _input_names(bound)
    with TemporaryDirectory(prefix="sparsenn-") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the exporter which needs no further package is an older one
        path, is_script = str(Path(folder, "module.onnx")), isinstance(module, torch.jit.ScriptModule)
        is_new = not is_script and find_spec("onnxscript") is not None
        is_fast = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)  # ONNX has no such operator
        try:
            results = output_names(module(*bound.args, **bound.kwargs))
            torch.onnx.export(
                module,
                bound.args,
                path,
                kwargs=bound.kwargs,
                input_names=names,
                output_names=results,
                dynamic_axes={name: {0: "rows"} for name in [*names, *results]},
                dynamo=is_new,
            )
        except Exception as error:  # of any kind: the module's own code runs
            newer = "" if is_new else "; PyTorch's newer exporter, for which onnxscript is needed, knows more"
            raise InputError(
                f"torch.onnx.export cannot make a graph of {type(module).__name__}: {reason_of(error)}{newer}"
            ) from error
        finally:
            torch.backends.mha.set_fastpath_enabled(is_fast)
        return from_onnx(path, sparse_below=sparse_below)


def _signature(module: Any) -> inspect.Signature:
    """Return the arguments of a module's forward; Python knows none of a traced one."""
    if not isinstance(module, torch.jit.ScriptModule):
        return inspect.signature(module.forward)
    arguments = module.forward.schema.arguments[1:]
    return inspect.Signature(
        [
            inspect.Parameter(
                each.name,
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
                default=each.default_value if each.has_default_value() else inspect.Parameter.empty,
            )
            for each in arguments
        ]
    )


def _input_names(bound: inspect.BoundArguments) -> list[str]:
    """Return what a module's arguments are called; those without names are numbered."""
    names: list[str] = []
    for name, value in bound.arguments.items():
        kind = bound.signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            names += [f"{name}_{number}" for number in range(len(value))]
        else:
            names += value if kind is inspect.Parameter.VAR_KEYWORD else [name]
    return names
