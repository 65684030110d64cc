"""The table of tuned numbers: kept in the cache folder for this device, and used by plans.

`keep` writes what was found by tuning into the file `tuning.json` of the cache folder, `table` reads it, and `forget`
takes entries out. Who uses the table: `choose_kernels`, for plans, and nobody else, through
`with_tuned_numbers`, which is the one place where kept numbers enter launches. A ladder, a benchmark or a launch by
hand runs a kernel as it comes.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from sparsenn.backends.contract import Backend
from sparsenn.backends.kernel_records import Kernel, Tunable
from sparsenn.errors import FileFormatError, ResourceError
from sparsenn.runtime.storage import cache_folder, read_record, write_record

__all__ = ["FILE", "Tuned", "TuningWarning", "forget", "keep", "readable_table", "table", "tuned", "with_tuned_numbers"]

FILE, VERSION = "tuning.json", 1


class TuningWarning(UserWarning):
    """The table of tuned numbers cannot be used; kernels run as they come."""


@dataclass(frozen=True)
class Tuned:
    """One entry of the table.

    Parameters
    ----------
    device : the hardware's own name.
    operation, rung, sizes : what the numbers are for, `rung` being the kernel's name; `sizes` in the words of its
        `Tunable`.
    parameters : the numbers by name; none where the kernel is fastest as it comes.
    seconds, untuned_seconds : medians with them, and without.
    runs : that the medians are of.
    package : version of this package that measured them.
    """

    device: str
    operation: str
    rung: str
    sizes: str
    parameters: Mapping[str, int]
    seconds: float
    untuned_seconds: float
    runs: int
    package: str


def table() -> tuple[Tuned, ...]:
    """Return all entries of the table, in the order in which they were kept; none if there is no table.

    Raises
    ------
    FileFormatError
        The table is damaged, or of another version; the message says what to do.
    ResourceError
        It cannot be read.
    """
    record = read_record(FILE, VERSION)
    entries = record.get("entries", [])
    path = cache_folder() / FILE
    if not isinstance(entries, list):
        raise FileFormatError(path, "holds no list of entries; sparsenn kernels tune --forget empties it")
    return tuple(_entry(entry, f"{path}: entry {number}") for number, entry in enumerate(entries, start=1))


def readable_table() -> tuple[Tuned, ...]:
    """Return what `table` does; one that cannot be read is a `TuningWarning`, and counts as empty."""
    try:
        return table()
    except (FileFormatError, ResourceError) as error:
        warnings.warn(f"kept numbers are not used: {error}", TuningWarning, stacklevel=2)
        return ()


def _entry(record: Any, place: str) -> Tuned:
    """Return one entry, every field of its type and every number within reason."""
    fields = Tuned.__dataclass_fields__
    if not isinstance(record, dict) or record.keys() != fields.keys():
        raise FileFormatError(place, f"must have {', '.join(fields)}; sparsenn kernels tune --forget empties the table")
    texts = (record[name] for name in ("device", "operation", "rung", "sizes", "package"))
    times = (record[name] for name in ("seconds", "untuned_seconds"))
    numbers = record["parameters"]
    right = (
        all(isinstance(text, str) for text in texts)
        and all(map(_is_time, times))
        and isinstance(numbers, dict)
        and all(map(_is_whole, (record["runs"], *numbers.values())))
    )
    if not right:
        raise FileFormatError(place, "holds a value of a wrong type; sparsenn kernels tune --forget empties the table")
    return Tuned(**record)


def _is_whole(number: Any) -> bool:
    return isinstance(number, int) and not isinstance(number, bool)


def _is_time(number: Any) -> bool:
    return isinstance(number, int | float) and not isinstance(number, bool) and 0 < number < math.inf


def keep(entries: Sequence[Tuned]) -> None:
    """Write entries into the table, in place of what it had for the same kernels and sizes.

    A table that cannot be read is a `TuningWarning`, and begun anew.

    Raises
    ------
    ResourceError
        It cannot be written.
    """
    replaced = set(map(_key, entries))
    _write([*(entry for entry in readable_table() if _key(entry) not in replaced), *entries])


def forget(rung: str | None = None, operation: str | None = None) -> int:
    """Take the entries of a kernel, of an operation or all of them out of the table; returns how many they were.

    A damaged table is emptied where all is to be forgotten.

    Raises
    ------
    FileFormatError
        The table is damaged, and not all of it is to be forgotten.
    ResourceError
        It cannot be written.
    """
    every = rung is None and operation is None
    try:
        entries = table()
    except FileFormatError:
        if not every:
            raise
        _write([])
        return 0
    left = [entry for entry in entries if not (rung in (None, entry.rung) and operation in (None, entry.operation))]
    if len(left) < len(entries):
        _write(left)
    return len(entries) - len(left)


def _key(entry: Tuned) -> tuple[str, ...]:
    return entry.device, entry.operation, entry.rung, entry.sizes


def _write(entries: Iterable[Tuned]) -> None:
    write_record(FILE, VERSION, {"entries": [asdict(entry) for entry in entries]})


def tuned(operation: str, rung: str, device: str, sizes: str) -> dict[str, int] | None:
    """Return the numbers that the table has for a kernel; None if it has none, or says that it is best as it comes.

    A table that cannot be read is a `TuningWarning`, and counts as empty.

    Parameters
    ----------
    operation, rung : of the kernel.
    device : the hardware's own name, as `Machine.name` of the backend's machine.
    sizes : in the words of the kernel's `Tunable`.
    """
    for entry in readable_table():
        if _key(entry) == (device, operation, rung, sizes) and entry.parameters:
            return dict(entry.parameters)
    return None


class _TunedLaunch:
    """A kernel's launch that takes the numbers kept for the sizes at hand if they fit, and none for other sizes."""

    def __init__(self, tunable: Tunable, untuned: Callable[..., Any], numbers: Mapping[str, Mapping[str, int]]) -> None:
        self._tunable = tunable
        self._untuned = untuned
        self._tuned = {sizes: (chosen, tunable.launch_with(chosen)) for sizes, chosen in numbers.items()}

    def __call__(self, *arguments: Any) -> Any:
        numbers, launch = self._tuned.get(self._tunable.sizes(*arguments), (None, self._untuned))
        if numbers is not None and self._tunable.fits(numbers, *arguments) is not None:
            launch = self._untuned
        return launch(*arguments)


def with_tuned_numbers(kernels: Iterable[Kernel], backend: Backend) -> tuple[Kernel, ...]:
    """Return kernels whose launches take the numbers that the table has for them on a backend's machine.

    This is where kept numbers come into force, and `choose_kernels` is what calls it: for all kernels that a plan may
    use, once each. Their summaries say so. Kernels without an entry are returned as they are. Numbers
    that a kernel no longer takes are passed over.
    """
    chosen = tuple(kernels)
    entries = readable_table() if any(kernel.tunable is not None for kernel in chosen) else ()
    if not entries:
        return chosen
    device = backend.machine.name
    return tuple(_with_numbers(kernel, [entry for entry in entries if entry.device == device]) for kernel in chosen)


def _with_numbers(kernel: Kernel, entries: Sequence[Tuned]) -> Kernel:
    """Return a kernel that takes what the entries for the device have for it."""
    if kernel.tunable is None:
        return kernel
    numbers = {
        entry.sizes: entry.parameters
        for entry in entries
        if (entry.operation, entry.rung) == (kernel.operation, kernel.name) and kernel.tunable.takes(entry.parameters)
    }
    if not numbers:
        return kernel
    which = next(iter(numbers)) if len(numbers) == 1 else f"{len(numbers):,} sizes"
    summary = f"{kernel.summary}, with numbers tuned for {which}"
    return replace(kernel, summary=summary, launch=_TunedLaunch(kernel.tunable, kernel.launch, numbers))
