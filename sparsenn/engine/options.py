"""Options: how a network is to be run, as a caller says it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypedDict

import numpy as np

from sparsenn.backends import Machine
from sparsenn.errors import UsageError, unknown_name
from sparsenn.formats.arrays import size as whole_size
from sparsenn.printable import kind_of
from sparsenn.runtime.memory import bytes_of

DOUBLE_PRECISION = "float64"
"""The precision of all layers, hidden values and sums: on the host by the reference's products, on a GPU by those of
cuSPARSE and cuBLAS."""

PRECISIONS = ("float32", "tf32", "float16", DOUBLE_PRECISION)
"""Precisions in which layers may be multiplied; sums are float32, except in the last."""

_SIZES = ("batch_size", "memory_limit", "weight_memory")
_FLAGS = ("compaction", "deduplication", "merging", "reproducible", "check_finite")


@dataclass(frozen=True)
class Options:
    """How a network is run. What is not said is chosen.

    Parameters
    ----------
    device : str, default "auto"
        One of `auto`, `cpu`, `cuda`, `cuda:i` and `reference`.
    machine : Machine or str, optional
        A GPU to plan for that need not be here, or its name, one of `sparsenn.backends.MACHINES`: plans can be printed,
        not run. All of its memory is taken to be free. The device is then `cuda` or `auto`.
    kernel : str, default "auto"
        One of `auto` and the kernels by name; a named one is obeyed or refused, never replaced. Where there are sparse
        layers it is one of `spmspm` and runs these; else it is one of `conv2d` where there are convolutions, and else
        one of `mlp`. Layers of other kinds are left to `auto`.
    precision : str, default "auto"
        One of `auto`, `float32`, `tf32`, `float16` and `float64`. `auto` is `float64` for networks that need it
        (`Network.needs_float64`), else `float32`. The next three are the least in which layers may be multiplied. The
        kernel `auto` is one of float32 for layers that none of the precision can run, and where it should be faster.
        Sums are float32 in any case. `float64` is for all layers, hidden values and sums; weights stay float32. The
        device `auto` is then the CPU, which does as `reference` does, more slowly; GPUs use cuSPARSE and cuBLAS, and
        refuse convolutions and poolings. `Plan.precisions` says what became of it layer by layer.
    batch_size : int, optional
        Samples taken through the network together; by default as many as the memory limit allows.
    memory_limit : int or str, optional
        Bytes for the rows in flight, or a text such as "2G" or "512 MiB"; by default half of the memory that is free.
    weight_memory : int or str, optional
        Bytes, likewise, that prepared weights may take on the device; by default half of what is free there when the
        session is made. Weights that take more are prepared again for each batch of rows, in parts; the plan says so.
    compaction : bool, default True
        Drop rows that have become all zero, where later layers keep them so.
    deduplication : bool, default True
        Compute rows that are equal bit for bit once.
    merging : bool, optional
        Compute outputs of a layer whose weights and bias are equal once, and hidden ones that are a power of two times
        others; by default so, but on the reference.
    reproducible : bool, default False
        Take only kernels with which the bits of a row's outputs depend on the row, the network and the device: not on
        the number or order of rows, memory limits, or threads. Sparse layers are then never multiplied as dense ones.
        Slower where there are dense layers or convolutions; refused where no kernel can.
    check_finite : bool, default True
        Refuse rows that hold NaN or an infinite number. No call waits for a GPU on that account: those of rows on a GPU
        are reported by `Session.run`, by a later call, or by `Session.check`. Sparse rows are always checked.

    Raises
    ------
    UsageError
        A name is no text, there is no such precision, a machine is no `Machine`, a size no whole number or not
        positive, or what is switched on or off no truth value.
    """

    device: str = "auto"
    machine: Machine | str | None = None
    kernel: str = "auto"
    precision: str = "auto"
    batch_size: int | None = None
    memory_limit: int | None = None
    weight_memory: int | None = None
    compaction: bool = True
    deduplication: bool = True
    merging: bool | None = None
    reproducible: bool = False
    check_finite: bool = True

    def __post_init__(self) -> None:
        for name in ("device", "kernel", "precision"):
            if not isinstance(getattr(self, name), str):
                raise UsageError(
                    f"the {name} is {getattr(self, name)!r}; give a name, such as {getattr(Options, name)!r}"
                )
        if self.precision not in ("auto", *PRECISIONS):
            raise unknown_name("precision", self.precision, ("auto", *PRECISIONS))
        for name in _SIZES:
            value, words = getattr(self, name), f"the {name.replace('_', ' ')}"
            if value is not None:
                in_bytes = isinstance(value, str) and name != "batch_size"
                object.__setattr__(self, name, bytes_of(value, words) if in_bytes else whole_size(value, words))
        for name in _FLAGS:
            value = getattr(self, name)
            if not isinstance(value, bool | np.bool_) and (value is not None or name != "merging"):
                raise UsageError(f"{name} is {value!r}; give True or False")
        if not isinstance(self.machine, Machine | str | None):
            raise UsageError(f"the machine is {kind_of(self.machine)}; give a Machine, or one's name")


def read_options(values: Mapping[str, Any]) -> Options:
    """Return options by name; what is not named has its default."""
    known = {field.name for field in fields(Options)}
    for name in values:
        if name == "devices":
            raise UsageError("a session has one device; use sparsenn.Sessions, or infer with devices, for several")
        if name not in known:
            raise UsageError(f"there is no option {name!r}; known: {', '.join(sorted(known))}")
    return Options(**values)


def resolve_precision(options: Options, needs_float64: bool) -> Options:
    """Return options with the precision that `auto` means for a network."""
    if options.precision != "auto":
        return options
    return replace(options, precision=DOUBLE_PRECISION if needs_float64 else PRECISIONS[0])


class StreamOptions(TypedDict, total=False):
    """The fields of `Options` by name, for type checkers, without the memory limit."""

    device: str
    machine: Machine | str | None
    kernel: str
    precision: str
    batch_size: int | None
    weight_memory: int | str | None
    compaction: bool
    deduplication: bool
    merging: bool | None
    reproducible: bool
    check_finite: bool


class NamedOptions(StreamOptions, total=False):
    """The fields of `Options` by name, for type checkers."""

    memory_limit: int | str | None
