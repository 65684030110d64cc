"""The registry of kernels: one place for their names, and an answer for wrong ones.

The engine's own kernels register when `sparsenn.backends` is imported. Modules that bring more are named in
`sparsenn.plugins`, imported when all kernels are listed, or one is asked for that is not there.
"""

from __future__ import annotations

from typing import TypeVar

from sparsenn.backends.kernel_records import CONV_OPERATION, DENSE_OPERATION, SPARSE_OPERATION, WHOLE_OPERATION, Kernel
from sparsenn.errors import SparseNNError, UsageError, unknown_name
from sparsenn.plugins import load_plugins

AnyKernel = TypeVar("AnyKernel", bound=Kernel)

LAYERS_OF = {
    SPARSE_OPERATION: "sparse layers",
    DENSE_OPERATION: "dense layers",
    CONV_OPERATION: "convolutions",
    WHOLE_OPERATION: "all layers",
}
"""The layers that operations run, in words."""

_KERNELS: dict[tuple[str, str, str], Kernel] = {}


def register(kernel: AnyKernel) -> AnyKernel:
    """Add a kernel to the registry and return it; a name may be taken once per operation and device."""
    key = (kernel.operation, kernel.device, kernel.name)
    if key in _KERNELS:
        raise SparseNNError(f"the {kernel.device} kernel {kernel.name!r} of {kernel.operation} is registered twice")
    _KERNELS[key] = kernel
    return kernel


def operations() -> tuple[str, ...]:
    """Return the names of all operations that have a kernel."""
    load_plugins()
    return tuple(sorted({kernel.operation for kernel in _KERNELS.values()}))


def kernels(operation: str | None = None, device: str | None = None) -> tuple[Kernel, ...]:
    """Return the registered kernels, in order of registration.

    Parameters
    ----------
    operation : str, optional
        Only those of an operation, such as `spmspm`.
    device : str, optional
        Only those of a device, as `Kernel.device` has it.

    Returns
    -------
    tuple of Kernel
        The records.

    Raises
    ------
    UsageError
        No kernel has that operation.
    """
    known = operations()
    if operation is not None and operation not in known:
        raise unknown_name("operation", operation, known)
    return _registered(operation, device)


def automatic(operation: str, device: str) -> tuple[Kernel, ...]:
    """Return the kernels that `auto` may take for an operation on a device, the preferred one first."""
    return tuple(kernel for kernel in _registered(operation, device) if kernel.auto)


def reproducible_kernels(operation: str, device: str) -> tuple[Kernel, ...]:
    """Return those whose outputs depend on the row alone (`Kernel.reproducible`); those that `auto` may take first."""
    found = [kernel for kernel in _registered(operation, device) if kernel.reproducible]
    return tuple(sorted(found, key=lambda kernel: not kernel.auto))


def kernel_named(operation: str, name: str, device: str) -> Kernel:
    """Return one kernel."""
    found = _KERNELS.get((operation, device, name))
    if found is not None:
        return found
    choices = {kernel.name: kernel for kernel in kernels(operation, device)}
    if name not in choices:
        raise unknown_name(f"{device} kernel for {operation}", name, choices)
    return choices[name]


def _registered(operation: str | None, device: str | None) -> tuple[Kernel, ...]:
    return tuple(
        kernel
        for kernel in _KERNELS.values()
        if operation in (None, kernel.operation) and device in (None, kernel.device)
    )


def permitted_kernels(
    operation: str, device: str, kernel: str, precision: str, reproducible: bool = False
) -> list[Kernel]:
    """Return the kernels that options permit, the preferred first; `auto` adds those of float32 as the last."""
    if kernel != "auto":
        chosen = kernel_named(operation, kernel, device)
        if chosen.precision != precision:
            raise UsageError(
                f"the kernel {kernel!r} multiplies in {chosen.precision}, not in {precision}; ask for "
                f"precision {chosen.precision}, or for another kernel"
            )
        if chosen.adds_in_half:
            raise UsageError(
                f"the kernel {kernel!r} adds in half precision, in which sums may become infinite unnoticed; it is a "
                "rung of a study, which no session runs: take another kernel"
            )
        if reproducible and not chosen.reproducible:
            known = ", ".join(entry.name for entry in reproducible_kernels(operation, device)) or "none"
            raise UsageError(f"the kernel {kernel!r} is not reproducible; those that are: {known}")
        return [chosen]
    there = reproducible_kernels(operation, device) if reproducible else automatic(operation, device)
    found = [entry for entry in there if entry.precision == precision]
    if not found:
        known = ", ".join(dict.fromkeys(entry.precision for entry in there)) or "none"
        how = ", if reproducibly," if reproducible else ""
        raise UsageError(f"{LAYERS_OF[operation]} are not multiplied{how} in {precision} on {device}; known: {known}")
    return found + [entry for entry in there if entry.precision == "float32" != precision]
