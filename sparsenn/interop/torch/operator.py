"""The operator of PyTorch that calls a session: `torch.compile` leaves it whole."""

from __future__ import annotations

from itertools import count
from typing import Protocol, TypeAlias
from weakref import WeakValueDictionary

import torch

from sparsenn.backends.cpu.row_threads import use_openmp
from sparsenn.engine import Session
from sparsenn.errors import UsageError

SHORT = (torch.float16, torch.bfloat16)
"""Types of rows that outputs have as well; other outputs are float32."""


Parameters: TypeAlias = tuple[torch.Tensor | None, ...]
"""Weights and biases, each with its mask or None; nothing where the network has its own."""


class Runner(Protocol):
    """The object that an operator's number stands for."""

    def outputs(self, rows: torch.Tensor, parameters: Parameters) -> torch.Tensor:
        """Return the outputs as a matrix; rows record no gradient."""
        ...

    def outputs_like(self, rows: torch.Tensor, parameters: Parameters) -> torch.Tensor:
        """Return a tensor with the shape and type of the outputs; its numbers do not matter."""
        ...


_runners: WeakValueDictionary[int, Runner] = WeakValueDictionary()
_numbers = count()


def register(runner: Runner) -> int:
    """Return a number for a runner, by which the operator finds it while it lives."""
    number = next(_numbers)
    _runners[number] = runner
    return number


def run(rows: torch.Tensor, parameters: Parameters, number: int) -> torch.Tensor:
    """Return the outputs of the runner of a number, in rows where its session has images."""
    outputs: torch.Tensor = torch.ops.sparsenn.run(rows, number, *parameters)
    return outputs


def session_outputs(session: Session, rows: torch.Tensor) -> torch.Tensor:
    """Return a session's outputs, a matrix, of rows of any type."""
    if rows.dtype == torch.bfloat16 or not rows.is_floating_point():
        rows = rows.float()
    matrix = rows.contiguous().flatten(1)
    if matrix.device.type == "cpu":  # a view by NumPy takes a tenth of the time that DLPack takes
        return torch.from_numpy(session(matrix.resolve_neg().numpy(), form="dense"))
    outputs: torch.Tensor = session(matrix, form="dense")
    return outputs


def _run(
    rows: torch.Tensor,
    number: int,
    weight: torch.Tensor | None = None,
    weight_mask: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    bias_mask: torch.Tensor | None = None,
) -> torch.Tensor:
    outputs = _runner(number).outputs(rows.detach(), (weight, weight_mask, bias, bias_mask))
    return outputs.to(_type(rows))


def _run_nothing(
    rows: torch.Tensor,
    number: int,
    weight: torch.Tensor | None = None,
    weight_mask: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    bias_mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return a tensor of what `_run` would give, without numbers."""
    outputs = _runner(number).outputs_like(rows, (weight, weight_mask, bias, bias_mask))
    return rows.new_empty((outputs.shape[0], outputs.shape[1:].numel()), dtype=_type(rows))


def _type(rows: torch.Tensor) -> torch.dtype:
    return rows.dtype if rows.dtype in SHORT else torch.float32


def _runner(number: int) -> Runner:
    if number not in _runners:
        raise UsageError("the network of this operator is gone: keep the module, or export the weights instead")
    return _runners[number]


use_openmp(torch._C.__file__)
_operator = torch.library.custom_op("sparsenn::run", _run, mutates_args=(), tags=(torch.Tag.cudagraph_unsafe,))
_operator.register_fake(_run_nothing)
