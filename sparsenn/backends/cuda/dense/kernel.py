"""What kernels of mlp have in common: how one is described, and how it is launched on its stack's device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from sparsenn.backends.contract import DenseKernel
from sparsenn.backends.cuda.availability import ANY_GPU
from sparsenn.backends.cuda.dense.stack import DenseStack, StackShape, shape_of
from sparsenn.backends.cuda.device import cupy, machine_of
from sparsenn.backends.cuda.memory import within_memory
from sparsenn.backends.machine import Machine
from sparsenn.errors import ShapeError, UsageError
from sparsenn.formats import Array
from sparsenn.layers import Linear

__all__ = ["Fits", "Launch", "dense_kernel", "fits_any"]

Launch = Callable[[DenseStack, Array], Array]
Fits = Callable[[Machine, StackShape], str | None]


def fits_any(machine: Machine, shape: StackShape) -> str | None:
    """Return None: every stack of dense layers fits."""
    return None


def dense_kernel(
    name: str,
    launch: Launch,
    summary: str,
    fits: Fits = fits_any,
    *,
    needs: tuple[str, ...] = (),
    auto: bool = False,
    seconds: Callable[[Machine, Sequence[Linear], int], float] | None = None,
    precision: str = "float32",
    half_rows: bool = False,
    tf32_products: int = 0,
    half_sums: int = 0,
) -> DenseKernel:
    """Describe a kernel of mlp on the GPU; packages register theirs, in order.

    Parameters
    ----------
    launch : takes a stack and features of its width, on its device, and returns a new array of the outputs.
    fits : says why a machine cannot run a stack of such a shape with it; None if it can.
    needs : besides a GPU.
    others : as `DenseKernel` has them.
    """
    return DenseKernel(
        name=name,
        device="cuda",
        summary=summary,
        launch=partial(_launch, launch, fits),
        needs=(ANY_GPU, *needs),
        auto=auto,
        why_not=partial(_why_not, fits),
        seconds=seconds,
        precision=precision,
        half_rows=half_rows,
        tf32_products=tf32_products,
        half_sums=half_sums,
    )


def _why_not(fits: Fits, machine: Machine, layers: Sequence[Linear]) -> str | None:
    return fits(machine, shape_of(layers))


def _launch(launch: Launch, fits: Fits, stack: DenseStack, features: Array) -> Array:
    """Launch a kernel on the stack's device.

    Raises
    ------
    ShapeError
        The features do not have the first layer's width.
    UsageError
        The kernel is not written for the stack, or for features of that type.
    OutOfMemoryError
        The device's memory does not suffice.
    """
    if features.ndim != 2 or features.shape[1] != stack.widths[0]:
        raise ShapeError(f"the features have shape {features.shape}; the first layer takes (rows, {stack.widths[0]})")
    reason = fits(machine_of(stack.device), stack.shape)
    if reason is not None:
        raise UsageError(reason)
    row = 4 * (sum(stack.widths[1:]) + max(stack.widths[1:]))
    with cupy().cuda.Device(stack.device), within_memory("a stack of dense layers", features.shape[0], row):
        return launch(stack, features)
