"""The module of PyTorch that runs a network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.autograd.forward_ad import unpack_dual

from sparsenn.engine import Session
from sparsenn.engine.inputs import check_network
from sparsenn.engine.options import read_options
from sparsenn.errors import InputError, ShapeError, UsageError
from sparsenn.interop.torch.operator import Parameters, register, run, session_outputs
from sparsenn.network import Network


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
        self._number = register(self)
        if "device" in options:
            self._session("cpu")

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the network's outputs.

        Parameters
        ----------
        rows : (rows, inputs), or (images, channels, height, width) for a network of images.

        Returns
        -------
        (rows, outputs), or (images, channels, height, width) where the last layer gives images; of the type of the rows
        where that is float16 or bfloat16, else float32.
        """
        if rows.is_complex() or rows.is_quantized:
            raise InputError(f"rows of {rows.dtype}; real numbers are needed, as rows.real or rows.dequantize() are")
        if unpack_dual(rows).tangent is not None:
            raise UsageError("a wrapped network has no derivative; for torch.func.jvp, use the PyTorch module instead")
        if rows.ndim < 2 or rows.shape[1:].numel() != self._inputs:
            raise ShapeError(f"rows of shape {tuple(rows.shape)}; the network takes rows of {self._inputs} numbers")
        outputs = run(rows.flatten(1), (), self._number)
        return outputs if len(self._shape) == 1 else outputs.unflatten(1, self._shape)

    def outputs(self, rows: torch.Tensor, parameters: Parameters = ()) -> torch.Tensor:
        """Return the outputs by the session of the rows' device, which is made when rows come from there first."""
        return session_outputs(self._session(str(rows.device)), rows)

    def outputs_like(self, rows: torch.Tensor, parameters: Parameters = ()) -> torch.Tensor:
        """Return a tensor with the shape of the outputs."""
        return rows.new_empty((rows.shape[0], self.network.outputs))

    def _session(self, device: str) -> Session:
        name = self.options.get("device", device)
        if name not in self._sessions:
            self._sessions[name] = Session(self.network, **{**self.options, "device": name})
        return self._sessions[name]

    def extra_repr(self) -> str:
        """Return what the module is shown as."""
        return repr(self.network)

    def __reduce__(self) -> tuple[Any, ...]:
        return SparseModule, (self.network, self.options)
