"""Sessions of a single layer whose weights PyTorch holds: made anew when these change."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.autograd.forward_ad import unpack_dual
from torch.nn.functional import conv2d, linear
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from sparsenn.engine import Session
from sparsenn.interop.torch.operator import SHORT, Parameters, register, session_outputs
from sparsenn.interop.torch.timing import QUEUED_ON_A_GPU, is_slower
from sparsenn.io.importers.signal import inputs
from sparsenn.io.importers.torch import operators
from sparsenn.layers.sparse_or_dense import fully_connected
from sparsenn.network import Network
from sparsenn.runtime.workers import renew_after_fork

MOST_SESSIONS = 8
"""Sessions of a layer: one for each device, and of convolutions for each size of image. Those used last stay."""

MAX_SETTLED = 64
"""Shapes of rows with which a layer's calls go straight to its session."""

UNBOUND = {"kernel": "auto", "precision": "auto", "reproducible": False}
"""Options with which PyTorch may compute in place of a session."""

ON_A_GPU = {torch.float16: "float16", torch.bfloat16: "tf32"}
"""Precision of sessions there for weights of a type, unless options name one; PyTorch's own is no higher."""

ALWAYS_SPARSE = 2.0  # a share of weights that no layer exceeds


@dataclass(frozen=True, eq=False)
class _Compiled:
    session: Session
    versions: tuple[Any, ...]
    tensors: tuple[torch.Tensor | None, ...]  # their memory goes to no other tensor meanwhile
    copies: tuple[torch.Tensor, ...]  # of those of inference mode, whose changes nothing counts
    weights: int  # that are not zero, in bits of their number

    def is_of(self, parameters: Parameters) -> bool:
        """Return whether parameters of inference mode have the numbers that were compiled."""
        return all(map(torch.equal, self.copies, _uncounted(parameters, copied=False)))


class _Settled(NamedTuple):
    """A call that can be repeated, with all that must be as it was."""

    session: Session
    is_slower: bool  # than PyTorch
    device: torch.device
    dtype: torch.dtype  # of the rows
    weight: torch.Tensor
    bias: torch.Tensor | None
    weight_version: Any
    bias_version: Any
    matrix: tuple[int, int]  # shape of the rows as a matrix
    outputs: tuple[int, ...]  # shape of the outputs


class LayerRunner:
    """The sessions of a layer, by device and size of images; a copy, or an unpickled one, begins with none.

    Parameters
    ----------
    convolution : stride, padding, dilation and groups; None for a fully connected layer.
    options : of the sessions.
    """

    def __init__(self, convolution: Mapping[str, Any] | None, options: Mapping[str, Any]) -> None:
        self.convolution, self.options = convolution, options
        self.number = register(self)
        self._compiled: OrderedDict[Any, _Compiled] = OrderedDict()
        self._settled: dict[Any, _Settled] = {}
        self._slower: dict[Any, bool] = {}  # whether the session is slower than PyTorch, by what matters to that
        self._measures = all(options.get(name, value) == value for name, value in UNBOUND.items())
        self._after_fork()
        renew_after_fork(self)

    def _compiled_for(self, rows: torch.Tensor, parameters: Parameters) -> _Compiled:
        """Return the session for rows of a device and shape, with the weights that the parameters have now."""
        key = str(rows.device), tuple(rows.shape[1:])
        versions = tuple(map(_version, parameters))
        with self._lock:
            compiled = self._compiled.get(key)
            if compiled is None or compiled.versions != versions or not compiled.is_of(parameters):
                self._settled.clear()
                options = dict(self.options)
                if self._measures and rows.is_cuda:
                    options["precision"] = ON_A_GPU.get(parameters[0].dtype, "auto")  # type: ignore[union-attr]
                session = Session(self._network(key[1], parameters), device=key[0], **options)
                tensors = tuple(None if each is None else each.detach() for each in parameters)
                weights = int(masked(*parameters[:2]).count_nonzero()).bit_length()
                compiled = self._compiled[key] = _Compiled(session, versions, tensors, _uncounted(parameters), weights)
            self._compiled.move_to_end(key)
            if len(self._compiled) > MOST_SESSIONS:
                self._compiled.popitem(last=False)
        return compiled

    def outputs(self, rows: torch.Tensor, parameters: Parameters) -> torch.Tensor:
        """Return the outputs as a matrix: by PyTorch where it is faster for as many rows, else by the session.

        The first of them are timed, and equal calls are computed alike from then on. Calls that a graph captures are
        the session's: in a graph, the time that they take to be launched does not count.
        """
        compiled = self._compiled_for(rows, parameters)
        by_session = partial(session_outputs, compiled.session, rows)
        is_same_type = rows.dtype == parameters[0].dtype  # type: ignore[union-attr]
        if not (self._measures and is_same_type and rows.shape[0]) or _is_captured(rows.device):
            return by_session()

        def by_pytorch() -> torch.Tensor:
            return self.outputs_like(rows, parameters).flatten(1)

        key = _size(compiled, rows, tuple(rows.shape))
        if key not in self._slower:
            queued = QUEUED_ON_A_GPU if rows.is_cuda else 1
            self._slower.setdefault(key, is_slower(by_session, by_pytorch, queued))
        return by_pytorch() if self._slower[key] else by_session()

    def settle(self, rows: torch.Tensor, parameters: Parameters) -> None:
        """Have calls of a fully connected layer like the one that has ended go straight to what computes them.

        These have rows of the same shape and type on the same device; there are no masks.
        """
        weight, weight_mask, bias, bias_mask = parameters
        if weight is None or not weight_mask is bias_mask is None or type(rows) is not torch.Tensor:
            return
        compiled = self._compiled.get((str(rows.device), (rows.shape[-1],)))
        if compiled is None or compiled.copies or compiled.versions != tuple(map(_version, parameters)):
            return
        if rows.dtype is not weight.dtype:  # as under autocast
            return
        if len(self._settled) >= MAX_SETTLED:
            self._settled.clear()
        shape = *rows.shape[:-1], weight.shape[0]
        versions = _version(weight), _version(bias)
        is_slower = self._slower.get(_size(compiled, rows, (rows.shape[:-1].numel(), rows.shape[-1])), False)
        self._settled[rows.shape] = _Settled(
            compiled.session,
            is_slower,
            rows.device,
            rows.dtype,
            weight,
            bias,
            *versions,
            (-1, rows.shape[-1]),
            shape,
        )

    def settled_outputs(self, module: Any, rows: torch.Tensor) -> torch.Tensor | None:
        """Return the outputs of rows like earlier ones; None where anything differs, so that all has to be checked."""
        if type(rows) is not torch.Tensor or rows.is_nested or torch.jit.is_tracing() or is_in_torch_dispatch_mode():
            return None
        settled = self._settled.get(rows.shape)
        if settled is None:
            return None
        parameters, weight, bias = module._parameters, settled.weight, settled.bias
        if parameters.get("weight") is not weight or parameters.get("bias", weight) is not bias:
            return None
        if settled.is_slower and weight._version == settled.weight_version[-1] and not _is_captured(settled.device):
            return linear(rows, weight, bias)  # which checks all else
        if _version(weight) != settled.weight_version or _version(bias) != settled.bias_version or module._buffers:
            return None
        if torch.is_grad_enabled() or torch.is_autocast_enabled(settled.device.type):
            return None
        if rows.dtype is not settled.dtype or rows.device != settled.device or rows.layout is not torch.strided:
            return None
        if not rows.is_contiguous() or rows.is_neg() or unpack_dual(rows).tangent is not None:
            return None
        is_read = rows.is_cpu and rows.dtype is torch.float32
        try:
            rows.data_ptr()
            numbers = rows.numpy() if is_read else rows.detach()
        except RuntimeError:  # of `torch.func.vmap` and the like, or a gradient that nothing records now
            return None
        matrix = numbers.reshape(settled.matrix)
        if rows.dtype in SHORT:
            return session_outputs(settled.session, matrix).to(rows.dtype).reshape(settled.outputs)
        outputs = settled.session(matrix, form="dense").reshape(settled.outputs)
        return torch.from_numpy(outputs) if is_read else outputs

    def outputs_like(self, rows: torch.Tensor, parameters: Parameters) -> torch.Tensor:
        """Return what PyTorch makes of rows."""
        weight, bias = masked(*parameters[:2]), masked(*parameters[2:])
        rows = rows.to(weight.dtype)  # which differ under autocast
        product: torch.Tensor = (
            linear(rows, weight, bias) if self.convolution is None else conv2d(rows, weight, bias, **self.convolution)
        )
        return product

    def _network(self, shape: tuple[int, ...], parameters: Parameters) -> Network:
        weight, bias = masked(*parameters[:2]), masked(*parameters[2:])
        if self.convolution is not None:
            return operators.convolution(inputs(shape, "images"), weight, bias, **self.convolution).network()
        shift = None if bias is None else _on_host(bias)
        return Network((fully_connected(_on_host(weight).T, shift, sparse_below=ALWAYS_SPARSE),))

    def _after_fork(self) -> None:
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return LayerRunner, (self.convolution, self.options)


def _size(compiled: _Compiled, rows: torch.Tensor, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """Return what decides which of two is the faster, numbers of rows and weights to a power of two.

    On a GPU the number of rows itself: the calls that are timed prepare the session for a capture.
    """
    return rows.dtype, shape[1:], shape[0] if rows.is_cuda else shape[0].bit_length(), compiled.weights


def _is_captured(device: torch.device) -> bool:
    """Return whether a graph captures calls with rows on a device."""
    return device.type == "cuda" and bool(torch.cuda.is_current_stream_capturing())


def masked(tensor: torch.Tensor | None, mask: torch.Tensor | None) -> Any:
    """Return a parameter times its mask, where it has one."""
    return tensor if tensor is None or mask is None else tensor * mask


def _version(tensor: torch.Tensor | None) -> Any:
    """Return what changes when a tensor's numbers do, but for changes through `.data`."""
    if tensor is None:
        return None
    counted = -1 if tensor.is_inference() else tensor._version
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), counted


def _uncounted(parameters: Parameters, copied: bool = True) -> tuple[torch.Tensor, ...]:
    tensors = (each for each in parameters if each is not None and each.is_inference())
    return tuple(each.clone() if copied else each for each in tensors)


def _on_host(tensor: Any) -> Any:
    return tensor.detach().float().cpu().numpy()
