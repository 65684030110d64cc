"""Meters: how long work takes on a device, what it occupies, and what the device can do at most.

Of the host's largest cache, the system tells the size; all threads together read from it.

Roofs are measured once, then read from the cache folder, whose file `ceilings.json` holds a record a device. One that
is damaged, or that another version of this package or of the driver left, is measured anew and replaced.
"""

from __future__ import annotations

import math
import re
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from sparsenn.backends.cpu import dense
from sparsenn.backends.cpu.processor import host_machine
from sparsenn.errors import FileFormatError, ResourceError, SparseNNError
from sparsenn.formats import Array
from sparsenn.layers import Linear
from sparsenn.runtime.jit import compiled, example
from sparsenn.runtime.storage import package_version, read_record, write_record
from sparsenn.runtime.workers import map_threads, thread_count

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
"""Where Linux describes the first processor's caches."""

UNTOLD = (3, 8 << 20)
"""Level and bytes that are assumed where the system does not tell."""

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}

BYTES_READ = 256 << 20
"""By each thread in one measurement: some ten milliseconds."""


def cache_level() -> int:
    """Return the level of the host's largest cache, 3 as a rule."""
    return _largest()[0]


def cache_bytes() -> int:
    """Return the size of the host's largest cache."""
    return _largest()[1]


def _largest() -> tuple[int, int]:
    found = []
    for folder in CACHES.glob("index*"):
        try:
            level, size = (folder.joinpath(name).read_text(encoding="ascii").strip() for name in ("level", "size"))
        except (OSError, ValueError):
            continue
        match = re.fullmatch(r"([0-9]+)([KMG]?)", size)
        if match and level.isdigit() and int(match[1]):
            found.append((int(level), int(match[1]) * UNITS[match[2]]))
    return max(found, key=lambda cache: cache[1], default=UNTOLD)


@compiled
def _read(numbers: Array, rounds: int) -> int:
    """Add up all numbers, in every round with that round's number on top; whole numbers fill vector registers."""
    total = np.int64(0)
    for round_number in range(rounds):
        for place in range(numbers.size):
            total += numbers[place] ^ np.int64(round_number)
    return int(total)


def reading() -> tuple[int, Callable[[], None]]:
    """Return work that reads a third of the largest cache again and again, and the bytes that it reads.

    Each thread has a part of that third to itself, which does not fit into the smaller caches of its core if the
    largest is so much larger. The work raises SparseNNError if what was read is not what is there.
    """
    threads = thread_count()
    size = max(1024, cache_bytes() // 3 // threads // 8)
    rounds = max(1, BYTES_READ // (8 * size))
    parts = [np.full(size, -1, np.int64) for _ in range(threads)]
    expected = -size * (rounds * (rounds + 1) // 2)  # -1 ^ n is -(n + 1)

    def work() -> None:
        found = map_threads(lambda part: _read(part, rounds), parts)
        if found != [expected] * threads:
            raise SparseNNError(f"reading the cache gave {found}, not {expected} for each thread")

    return 8 * size * rounds * threads, work


@example
def _read_little() -> None:
    _read(np.zeros(1, np.int64), 1)


RUNS = 20


@dataclass(frozen=True)
class Measurement:
    """One launch, measured."""

    output: Any  # what it returned
    seconds: float  # from its start to its result, without what is counted for statistics only
    kernel_seconds: float | None = None  # spent in kernels of the operation itself; None where the device does not tell
    registers: int | None = None  # of a thread of the operation's kernel; None where the device does not tell
    shared_bytes: int | None = None  # of a block, likewise


@dataclass(frozen=True)
class Identity:
    """What was measured: numbers found for one identity hold for another one that is equal."""

    device: str  # the hardware's own name, whatever its number in this machine
    driver: str  # what stands between it and this program, with its version


@dataclass(frozen=True)
class Roofs:
    """What bounds a kernel by what it moves through each memory and by what it multiplies: the roofs of a roofline."""

    copy_bandwidth: float  # bytes per second, read plus written, of a copy far larger than the caches
    cache_bandwidth: float  # bytes per second that all processors together read from the cache they share
    cache: str  # that cache's name, such as L2
    cache_bytes: int  # its size
    multiply_adds: Mapping[str, float] = field(hash=False)
    """Multiply-adds per second by precision: `float32`, and where there are any `tf32` and `float16`. On a host those
    of a large matrix product, the faster of NumPy's and this package's."""
    shared_bandwidth: float | None = None
    """Bytes per second that all processors together read from shared memory; None where there is none."""
    processors: int = 1  # multiprocessors of a GPU, threads of a host

    def floor(self, bytes_moved: int, multiply_adds: int) -> float:
        """Return the seconds that no float32 kernel can go below: memory or arithmetic, whichever takes longer."""
        return max(bytes_moved / self.copy_bandwidth, multiply_adds / self.multiply_adds["float32"])


class Meter(Protocol):
    """Measures on one device."""

    def identity(self) -> Identity:
        """Say what device this is."""
        ...

    def measure(self, operation: str, work: Callable[[], Any]) -> Measurement:
        """Run `work`, which launches `operation`, to its end."""
        ...

    def roofs(self) -> Roofs:
        """Measure the device, its caches and its arithmetic by precision."""
        ...


class HostMeter:
    """Measures by the wall clock."""

    def identity(self) -> Identity:
        """Return the processor's name with the threads in use, and NumPy's version: its library multiplies."""
        return Identity(host_machine().name, f"numpy {np.__version__}")

    def measure(self, operation: str, work: Callable[[], Any]) -> Measurement:
        """Run `work`."""
        start = time.perf_counter()
        output = work()
        return Measurement(output, time.perf_counter() - start)

    def roofs(self) -> Roofs:
        """Measure a copy, a matrix product and reading the largest cache, on all threads; medians of 20 runs."""
        source = np.ones((thread_count(), 32 << 20), np.float32)
        target = np.zeros_like(source)

        def copy() -> None:
            map_threads(lambda part: np.copyto(target[part], source[part]), range(thread_count()))

        size = 2048
        matrix = np.random.default_rng(0).random((size, size), dtype=np.float32)
        product, stack = np.empty_like(matrix), dense.prepare([Linear(matrix)])
        products = (lambda: np.matmul(matrix, matrix, out=product)), (lambda: dense.launch(stack, matrix))
        read, work = reading()
        return Roofs(
            copy_bandwidth=2 * source.nbytes / median_seconds(self, copy),
            cache_bandwidth=read / median_seconds(self, work),
            cache=f"L{cache_level()}",
            cache_bytes=cache_bytes(),
            multiply_adds={"float32": size**3 / min(median_seconds(self, work) for work in products)},
            processors=thread_count(),
        )


def median_seconds(meter: Meter, work: Callable[[], Any]) -> float:
    """Return the median of 20 runs after one to warm up."""
    work()
    return statistics.median(meter.measure("", work).seconds for _ in range(RUNS))


FILE = "ceilings.json"  # in the cache folder
VERSION = 2  # of its format


@dataclass(frozen=True)
class MeasuredRoofs:
    """Roofs, and where they are from."""

    roofs: Roofs  # the numbers
    identity: Identity  # the device that they were measured on
    measured: bool  # whether that was just now; else they are from the cache folder
    notes: tuple[str, ...] = ()  # sentences on what did not go as it should, such as a damaged file


def roofs_of(meter: Meter, anew: bool = False) -> MeasuredRoofs:
    """Return the roofs of a meter's device: those kept for it in the cache folder, or measured now and kept.

    Measuring takes seconds. A file that cannot be read or written is a note, no error.
    """
    identity, notes = meter.identity(), []
    records: dict[str, Any] = {}
    try:
        found = read_record(FILE, VERSION).get("devices", {})
        records = found if isinstance(found, dict) else {}
    except (FileFormatError, ResourceError) as error:
        notes.append(f"{error}; the ceilings are measured anew")
    key = f"{identity.device}, {identity.driver}, sparsenn {package_version()}"
    if not anew and key in records:
        kept = _roofs(records[key])
        if kept is not None:
            return MeasuredRoofs(kept, identity, measured=False, notes=tuple(notes))
        notes.append(f"what {FILE} holds for {key} is damaged; the ceilings are measured anew")
    roofs = meter.roofs()
    try:
        write_record(FILE, VERSION, {"devices": records | {key: asdict(roofs)}})
    except (ResourceError, ValueError) as error:
        notes.append(f"the ceilings are not kept: {error}")
    return MeasuredRoofs(roofs, identity, measured=True, notes=tuple(notes))


def _roofs(record: Any) -> Roofs | None:
    """Return the roofs of a record; None if it is not what a measurement leaves."""
    if not isinstance(record, Mapping) or set(record) != set(Roofs.__dataclass_fields__):
        return None
    rates, shared = record["multiply_adds"], record["shared_bandwidth"]
    if not isinstance(rates, Mapping) or "float32" not in rates or not isinstance(record["cache"], str):
        return None
    numbers = [record[name] for name in ("copy_bandwidth", "cache_bandwidth", "cache_bytes", "processors")]
    numbers += [*rates.values(), *([] if shared is None else [shared])]
    whole = isinstance(record["cache_bytes"], int) and isinstance(record["processors"], int)
    return Roofs(**record) if whole and all(map(_is_positive, numbers)) else None


def _is_positive(number: Any) -> bool:
    return isinstance(number, int | float) and not isinstance(number, bool) and 0 < number < math.inf
