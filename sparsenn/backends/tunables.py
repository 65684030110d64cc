"""Rungs whose launches take numbers that change no result, only the time: what `tune` tries and the planner installs.

All of them are listed here, in `tunables`. What is best depends on the device and on the sizes of what is launched;
each rung says in words which sizes those are.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

from sparsenn.backends.base import StepInput
from sparsenn.backends.cpu.convolution import PIECE_BYTES_TO_TRY, launch_im2col_blas
from sparsenn.backends.cpu.panel import CHUNK_ROWS_TO_TRY, LANES_TO_TRY, launch_panel
from sparsenn.backends.cuda.conv import swept, warpgroup, warpgroup_rows
from sparsenn.backends.cuda.conv.layer import ConvLayer
from sparsenn.backends.ladder import sweeps
from sparsenn.errors import UsageError, unknown_name
from sparsenn.formats import Array
from sparsenn.layers import Conv2d

__all__ = [
    "Tunable",
    "about",
    "conv2d_sizes",
    "panel_sizes",
    "product_sizes",
    "step_sizes",
    "tunable_named",
    "tunables",
]


@dataclass(frozen=True, eq=False)
class Tunable:
    """A rung with numbers to tune.

    Parameters
    ----------
    operation, rung, device : which variant.
    parameters : the values to try of each number, by its name.
    launch_with : returns the variant's launch with given numbers, one of each name.
    sizes : says, given what a launch takes, for which sizes numbers are best: launches of the same words share them.
    fits : given numbers and what a launch takes, says why they cannot go together; None if they can.
    """

    operation: str
    rung: str
    device: str
    parameters: Mapping[str, tuple[int, ...]]
    launch_with: Callable[[Mapping[str, int]], Callable[..., Any]]
    sizes: Callable[..., str]
    fits: Callable[..., str | None] = lambda numbers, *arguments: None

    def combinations(self) -> Iterator[dict[str, int]]:
        """Yield every choice of one value for each number."""
        for values in itertools.product(*self.parameters.values()):
            yield dict(zip(self.parameters, values, strict=True))

    def takes(self, numbers: Mapping[str, int]) -> bool:
        """Return whether numbers are such as `combinations` yields."""
        return numbers.keys() == self.parameters.keys() and all(
            value in self.parameters[name] for name, value in numbers.items()
        )

    def limited(self, values: Mapping[str, tuple[int, ...]]) -> Tunable:
        """Return the same with fewer values to try of the numbers that are named.

        Raises
        ------
        UsageError
            It has no number of that name, or does not take a value.
        """
        for name, wanted in values.items():
            if name not in self.parameters:
                raise unknown_name(f"number of {self.rung}", name, self.parameters)
            known = self.parameters[name]
            for value in wanted:
                if value not in known:
                    raise UsageError(f"{name} of {value} cannot be tried; {self.rung} takes {_listed(known)}")
        return replace(self, parameters=dict(self.parameters) | dict(values))


def _listed(values: Iterable[int]) -> str:
    return ", ".join(map(str, values))


def about(count: int) -> str:
    """Return words for all counts from a power of two up to the next, within which what is best seldom changes."""
    if count < 1:
        return "0"
    least = 1 << (count.bit_length() - 1)
    return f"{least}-{2 * least - 1}" if least > 1 else "1"


def step_sizes(step: StepInput) -> str:
    """Return the sizes of a launch of `spmspm`: the rows' width, and about how many they are."""
    rows, width = step.features.shape
    return f"width {width}, rows {about(rows)}"


def panel_sizes(step: StepInput) -> str:
    """Return the sizes of a launch of panels: the widest of its layers, and about how many rows there are."""
    widest = int(step.stack.packed.widths[step.first : step.last + 1].max())
    return f"width {widest}, rows {about(step.features.shape[0])}"


def conv2d_sizes(layer: Conv2d | ConvLayer, images: Array) -> str:
    """Return the sizes of a convolution, and about how many images there are."""
    steps = (
        layer.steps
        if isinstance(layer, Conv2d)
        else (layer.geometry.stride, layer.geometry.padding, layer.geometry.dilation)
    )
    count, *image = images.shape
    told = (f"{name} {_times(step)}" for name, step in zip(("stride", "padding", "dilation"), steps, strict=True))
    return ", ".join([f"images {about(count)} of {_times(image)}", f"filters {_times(layer.weights.shape)}", *told])


def product_sizes(a: Array, b: Array) -> str:
    """Return the sizes of a matrix product, about how many rows it has among them."""
    return f"rows {about(a.shape[0])}, depth {a.shape[1]}, columns {b.shape[1]}"


SIZES: dict[str, Callable[..., str]] = {"spmspm": step_sizes, "conv2d": conv2d_sizes, "gemm": product_sizes}
"""How launches of an operation tell their sizes, for rungs that ladders sweep."""


def _times(sizes: Any) -> str:
    return "x".join(map(str, sizes))


@cache
def tunables() -> tuple[Tunable, ...]:
    """Return every rung that can be tuned: those listed here, then all others that a ladder's `--sweep` varies."""
    own = (
        Tunable(
            operation="spmspm",
            rung="panel",
            device="cpu",
            parameters={"lanes": LANES_TO_TRY, "chunk_rows": CHUNK_ROWS_TO_TRY},
            launch_with=partial(_with_numbers, launch_panel),
            sizes=panel_sizes,
        ),
        Tunable(
            operation="conv2d",
            rung="im2col_blas",
            device="cpu",
            parameters={"piece_bytes": PIECE_BYTES_TO_TRY},
            launch_with=partial(_with_numbers, launch_im2col_blas),
            sizes=conv2d_sizes,
        ),
        Tunable(
            operation="conv2d",
            rung="swept",
            device="cuda",
            parameters=swept.PARAMETERS,
            launch_with=swept.launch_with,
            sizes=conv2d_sizes,
            fits=lambda numbers, layer, images: swept.why_not_parameters(layer.geometry, numbers),
        ),
        *(
            Tunable(
                operation="conv2d",
                rung=name,
                device="cuda",
                parameters=module.PARAMETERS,
                launch_with=launch_with,
                sizes=conv2d_sizes,
                fits=partial(_fits_convolution, why_not),
            )
            for name, module, launch_with, why_not in _warpgroups()
        ),
    )
    listed = {(entry.operation, entry.rung) for entry in own}
    varied = (
        Tunable(
            operation=sweep.rung.operation,
            rung=sweep.rung.name,
            device=sweep.rung.device,
            parameters={sweep.parameter: sweep.values},
            launch_with=partial(_swept, sweep.launch_with),
            sizes=SIZES[sweep.rung.operation],
        )
        for sweep in sweeps()
        if sweep.rung.operation in SIZES and (sweep.rung.operation, sweep.rung.name) not in listed
    )
    return (*own, *varied)


def _warpgroups() -> Iterator[tuple[str, Any, Callable[..., Any], Callable[..., str | None]]]:
    """Yield the rungs of whole warpgroups: name, module, `launch_with` and `why_not_numbers`."""
    for name, kind in warpgroup.KINDS.items():
        yield name, warpgroup, partial(warpgroup.launch_with, kind), partial(warpgroup.why_not_numbers, kind)
    for name in warpgroup_rows.PRECISIONS:
        yield name, warpgroup_rows, warpgroup_rows.launch_with, warpgroup_rows.why_not_numbers


def _fits_convolution(
    why_not: Callable[..., str | None], numbers: Mapping[str, int], layer: ConvLayer, images: Array
) -> str | None:
    return why_not(numbers, layer.geometry, images.shape[0])


def _with_numbers(launch: Callable[..., Any], numbers: Mapping[str, int]) -> Callable[..., Any]:
    return partial(launch, **numbers)


def _swept(launch_with: Callable[[int], Callable[..., Any]], numbers: Mapping[str, int]) -> Callable[..., Any]:
    (value,) = numbers.values()
    return launch_with(value)


def tunable_named(rung: str, device: str, operation: str | None = None) -> Tunable:
    """Return the rung of that name that can be tuned on a device, of an operation or of the only one that has it.

    Raises
    ------
    UsageError
        There is none, or several operations have one; the message lists the choices.
    """
    there = [entry for entry in tunables() if entry.device == device and operation in (None, entry.operation)]
    found = [entry for entry in there if entry.rung == rung]
    if not found:
        what = f"{device} kernel that can be tuned" if operation is None else f"{device} kernel for {operation} to tune"
        raise unknown_name(what, rung, {entry.rung for entry in there})
    if len(found) > 1:
        names = ", ".join(entry.operation for entry in found)
        raise UsageError(f"{rung} is a {device} kernel of {names}; say which by --operation")
    return found[0]
