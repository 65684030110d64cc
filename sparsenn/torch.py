"""Networks as modules of PyTorch, and PyTorch's modules with sparse layers; PyTorch is imported by the first call."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from sparsenn.engine.options import NamedOptions
from sparsenn.errors import UsageError
from sparsenn.interop.torch.report import ModuleReport, SparsifyReport
from sparsenn.network import Network

if TYPE_CHECKING:
    from sparsenn.interop.torch.module import SparseModule

__all__ = ["ModuleReport", "SparsifyReport", "desparsify", "sparsify", "wrap"]


def wrap(network: Network, **options: Unpack[NamedOptions]) -> SparseModule:
    """Return a network as a `torch.nn.Module`, for inference.

    ::

        module = sparsenn.torch.wrap(network)
        outputs = module(rows)                        # of shape (rows, outputs), on the device of the rows

    Rows are run where they are, and on a GPU on PyTorch's current stream; nothing is copied. The module computes by the
    registered operator `sparsenn::run`, which `torch.compile` leaves whole; it has no parameters, and no derivative,
    neither backward nor forward.

    Unless a device is among the options, there is a session for each device that rows come from.

    Parameters
    ----------
    network : Network
        The layers.
    **options : Options
        As `sparsenn.Session` takes them.

    Returns
    -------
    torch.nn.Module
        A module without parameters.

    Raises
    ------
    UsageError
        PyTorch is not installed, or too old to have `torch.library.custom_op`; or as `sparsenn.Session`.
    """
    module: SparseModule = _needing_torch("wrap", "module").SparseModule(network, options)
    return module


@overload
def sparsify(
    module: Any,
    density_below: float = 0.3,
    *,
    example: Any = None,
    inplace: bool = True,
    report: Literal[False] = False,
    **options: Unpack[NamedOptions],
) -> Any: ...


@overload
def sparsify(
    module: Any,
    density_below: float = 0.3,
    *,
    example: Any = None,
    inplace: bool = True,
    report: Literal[True],
    **options: Unpack[NamedOptions],
) -> tuple[Any, SparsifyReport]: ...


def sparsify(
    module: Any,
    density_below: float = 0.3,
    *,
    example: Any = None,
    inplace: bool = True,
    report: bool = False,
    **options: Unpack[NamedOptions],
) -> Any:
    """Have the pruned `Linear` and `Conv2d` modules of a PyTorch model computed by sessions, for inference.

    ::

        model, report = sparsenn.torch.sparsify(model, example=tokens, report=True)
        print(report)                                 # module by module: density, time before and after
        with torch.inference_mode():
            outputs = model(tokens)
        sparsenn.torch.desparsify(model)              # the model as it was

    Replaced modules keep their parameters, hooks and place, and so the model its `state_dict`; all else stays
    PyTorch's. The model can be copied, pickled, moved to another device or type, and compiled by `torch.compile`, in
    which each replaced module is one operator. Weights that change, as by `load_state_dict`, are compiled anew at the
    next call, but for changes through `.data` or `.numpy()`. Masks of `torch.nn.utils.prune` cost a product at each
    call, as without sparsify; `prune.remove` ends that.

    The first calls of a module with some number of rows, on a CPU to a power of two, are timed beside PyTorch's, which
    computes such calls from then on if it is faster; not with `reproducible`, or a kernel or precision by name, nor
    calls that a CUDA graph captures.

    PyTorch's own forward runs where a gradient is recorded, with a warning, so that training stays correct: call the
    model under `torch.inference_mode()` or `torch.no_grad()`. So it does for rows of float64, in replicas of
    `DataParallel`, and under `torch.func.functional_call`.

    Parameters
    ----------
    module : torch.nn.Module
        The model, or a single `Linear` or `Conv2d`.
    density_below : float, default 0.3
        Modules in which a smaller share of weights is not zero are replaced.
    example : torch.Tensor, or tuple or dict of str to torch.Tensor, optional
        One batch, the model's arguments in order, or by name. The model is called with it, by PyTorch and by sessions
        in turns, in evaluation mode: of the modules below the density, those stay PyTorch's that are not called, or
        not faster by 5 % with as many rows. Without an example the density decides, and nothing is called.
    inplace : bool, default True
        False leaves the model as it is, and returns a deep copy.
    report : bool, default False
        Whether to return the decisions on all modules, too.
    **options : Options
        As `sparsenn.Session` takes them, but for the device, which is that of the rows. `check_finite` is False by
        default, as PyTorch computes with NaN and infinite numbers, too; of these, a zero weight may make zero. The
        precision `auto` is on a GPU float16 for weights of float16, and tf32 for those of bfloat16.

    Returns
    -------
    torch.nn.Module, or tuple of torch.nn.Module and SparsifyReport
        The model, and the report if it was asked for.

    Raises
    ------
    UsageError
        PyTorch is not installed, or too old to have `torch.library.custom_op`; the module is none, the density is not
        above 0 and up to 1; or an option as of `sparsenn.Session`.
    """
    model, what = _needing_torch("sparsify", "replacing").sparsify_model(
        module, density_below, example, inplace, options
    )
    return (model, what) if report else model


def desparsify(module: Any) -> Any:
    """Have PyTorch compute all modules of a model again that `sparsify` replaced, in place.

    ::

        sparsenn.torch.desparsify(model)

    Parameters
    ----------
    module : torch.nn.Module
        The model; one without replaced modules stays as it is.

    Returns
    -------
    torch.nn.Module
        The same model.

    Raises
    ------
    UsageError
        PyTorch is not installed, or the module is none.
    """
    return _needing_torch("desparsify", "replacing").desparsify_model(module)


def _needing_torch(function: str, name: str) -> Any:
    """Return a module of `sparsenn.interop.torch`, which imports PyTorch."""
    try:
        return import_module(f"sparsenn.interop.torch.{name}")
    except (ImportError, AttributeError) as error:
        raise UsageError(f"{function} needs PyTorch, which is missing or too old ({error})") from error
