"""The module of PyTorch that runs a network, and the operator by which it does."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch.autograd.forward_ad import unpack_dual

from sparsenn.engine import Session
from sparsenn.engine.inputs import check_network
from sparsenn.engine.options import read_options
from sparsenn.errors import InputError, ShapeError, UsageError
from sparsenn.network import Network

__all__ = ["SparseModule"]

_SHORT = (torch.float16, torch.bfloat16)
"""Types of rows that outputs keep; otherwise outputs are float32."""

_modules: WeakValueDictionary[int, SparseModule] = WeakValueDictionary()
_numbers = count()


class SparseModule(torch.nn.Module):  # type: ignore[misc]
    """A network that PyTorch calls.

    Modules pickle, and are copied, as their network and options.

    Parameters
    ----------
    network : the layers.
    options : of the sessions that run it.
    """

    def __init__(self, network: Network, options: Mapping[str, Any]) -> None:
        super().__init__()
        check_network(network)
        read_options(options)
        self.network = network
        self.options = options
        self._sessions: dict[str, Session] = {}
        self._inputs, self._shape = network.inputs, network.shapes[-1]
        self._number = next(_numbers)
        _modules[self._number] = self
        if "device" in options:
            self.session(torch.device("cpu"))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the network's outputs.

        Parameters
        ----------
        rows : (rows, inputs), or (images, channels, height, width) for a network of images.

        Returns
        -------
        (rows, outputs), or (images, channels, height, width) where the last layer gives images; of the type of the rows
        where that is float16 or bfloat16, else float32.

        Raises
        ------
        ShapeError
            The rows have another shape.
        InputError
            They are complex or quantized.
        UsageError
            A forward-mode derivative is asked for, as by `torch.func.jvp`.
        """
        if rows.is_complex() or rows.is_quantized:
            raise InputError(f"rows of {rows.dtype}; real numbers are needed, as rows.real or rows.dequantize() are")
        if unpack_dual(rows).tangent is not None:
            raise UsageError("a wrapped network has no derivative; for torch.func.jvp, use the PyTorch module instead")
        if rows.ndim < 2 or rows.shape[1:].numel() != self._inputs:
            raise ShapeError(f"rows of shape {tuple(rows.shape)}; the network takes rows of {self._inputs} numbers")
        outputs: torch.Tensor = torch.ops.sparsenn.run(rows.flatten(1), self._number)
        return outputs if len(self._shape) == 1 else outputs.unflatten(1, self._shape)

    def session(self, device: torch.device) -> Session:
        """Return what runs rows on a device, which is made ready when they come first."""
        name = str(self.options.get("device", device))
        if name not in self._sessions:
            self._sessions[name] = Session(self.network, **{**self.options, "device": name})
        return self._sessions[name]

    def extra_repr(self) -> str:
        """Return what the module is shown as."""
        return repr(self.network)

    def __reduce__(self) -> tuple[Any, ...]:
        return SparseModule, (self.network, self.options)


def _run(rows: torch.Tensor, number: int) -> torch.Tensor:
    """Run the module of a number on rows of shape (rows, inputs)."""
    module = _module(number)
    given = rows.detach()
    if given.dtype == torch.bfloat16 or not given.is_floating_point():
        given = given.float()
    with _stream(given.device):
        outputs: torch.Tensor = module.session(given.device)(given, form="dense")
    return outputs.to(_type(rows))


def _run_nothing(rows: torch.Tensor, number: int) -> torch.Tensor:
    """Return a tensor of what `_run` would give, without numbers."""
    return rows.new_empty((rows.shape[0], _module(number).network.outputs), dtype=_type(rows))


def _type(rows: torch.Tensor) -> torch.dtype:
    return rows.dtype if rows.dtype in _SHORT else torch.float32


def _module(number: int) -> SparseModule:
    if number not in _modules:
        raise UsageError("the network of this operator is gone: keep the module, or export the weights instead")
    return _modules[number]


def _stream(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context in which work on a GPU is queued on PyTorch's current stream."""
    if device.type != "cuda":
        return nullcontext()
    from sparsenn.backends.cuda.runtime.streams import on_stream

    return on_stream(torch.cuda.current_stream(device).cuda_stream)


_operator = torch.library.custom_op("sparsenn::run", _run, mutates_args=(), tags=(torch.Tag.cudagraph_unsafe,))
_operator.register_fake(_run_nothing)
