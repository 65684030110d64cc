"""How much memory the host has left for this process: what the system says, within what its limits allow."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from sparsenn.errors import ResourceError, UsageError

try:
    import resource
except ImportError:  # not a Unix
    resource = None  # type: ignore[assignment]


class _Controller(NamedTuple):
    """Where a version of Linux's control groups keeps what it knows of memory, in bytes.

    tops : folders of the groups, of which at most one is there.
    name : of the controller in /proc/self/cgroup.
    limit, used : files of a group's folder.
    reclaimable : the line of its `memory.stat` that counts cached files, which are dropped when memory is needed.
    """

    tops: tuple[str, ...]
    name: str
    limit: str
    used: str
    reclaimable: str


_CONTROLLERS = (
    _Controller(("sys/fs/cgroup", "sys/fs/cgroup/unified"), "", "memory.max", "memory.current", "inactive_file"),
    _Controller(
        ("sys/fs/cgroup/memory",), "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
    ),
)
"""Versions 2 and 1."""

_BYTES = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?([kMGT])(i?)B?", re.IGNORECASE)


def check_memory(needed: int, what: str, remedy: str = "close other programs, or use a machine with more") -> None:
    """Refuse to start what would not fit into the memory that is left.

    Raises
    ------
    ResourceError
        Fewer bytes are available. Where the system does not say, nothing is refused.
    """
    available = free_memory()
    if available is not None and available < needed:
        raise ResourceError(
            f"{what} needs {shown_bytes(needed)} of memory; {shown_bytes(available)} are available; {remedy}"
        )


def free_memory(root: Path = Path("/")) -> int | None:
    """Return the bytes that can be allocated without swapping; None where the system does not say.

    It is the least of what the system has left, what each control group that the process is in may still take, and what
    the process may by its own limit (`ulimit -v`).
    """
    return min((left for left in memory_left(root).values() if left is not None), default=None)


def memory_left(root: Path = Path("/")) -> dict[str, int | None]:
    """Return the bytes that each of three limits leaves, by its name; None where there is no such limit."""
    return {
        "system": _left_by_system(root),
        "control groups": min(_left_by_groups(root), default=None),
        "ulimit -v": _left_by_limit(root),
    }


def bytes_of(text: str, name: str) -> int:
    """Return the bytes that a text says, such as `1G`, `1.5 GB` or `512 MiB`: k, M, G and T are powers of 1,000."""
    found = _BYTES.fullmatch(text.strip())
    count = int(float(found[1]) * (1024 if found[3] else 1000) ** (1 + "kmgt".index(found[2].lower()))) if found else 0
    if count < 1:
        raise UsageError(f"{name} is {text!r}; give bytes, an integer of at least 1, or a text such as '2G'")
    return count


def shown_bytes(count: int) -> str:
    """Return a number of bytes in words."""
    return f"{count / 1e9:,.1f} GB" if count >= 1e8 else f"{count / 1e6:,.1f} MB"


def _left_by_system(root: Path) -> int | None:
    """Return what Linux estimates; elsewhere the free pages, or all where only their number is known."""
    available = _line(root / "proc/meminfo", "MemAvailable:")
    if available is not None:
        return 1024 * available
    for pages in ("SC_AVPHYS_PAGES", "SC_PHYS_PAGES"):
        try:
            return os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE")
        except (AttributeError, OSError, ValueError):
            continue
    return None


def _left_by_groups(root: Path) -> Iterator[int]:
    for entry in _text(root / "proc/self/cgroup").splitlines():
        _, names, path = entry.split(":", 2)
        for controller in _CONTROLLERS:
            if controller.name in names.split(","):
                for top in controller.tops:
                    yield from _left_along(root / top, path, controller)


def _left_along(top: Path, path: str, controller: _Controller) -> Iterator[int]:
    """Yield what the groups leave from a path up to the top. A path outside of what is mounted here is no folder."""
    parts = [part for part in path.split("/") if part]
    for depth in range(0 if ".." in parts else len(parts), -1, -1):
        folder = top.joinpath(*parts[:depth])
        limit = _text(folder / controller.limit).strip()
        if limit.isdigit() and (used := _text(folder / controller.used).strip()).isdigit():
            cached = _line(folder / "memory.stat", controller.reclaimable) or 0
            yield max(0, int(limit) - max(0, int(used) - cached))


def _left_by_limit(root: Path) -> int | None:
    """Return what the process may still reserve of addresses; None where there is no limit, or none is known."""
    if resource is None:
        return None
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    pages = _text(root / "proc/self/statm").split()
    if limit == resource.RLIM_INFINITY or not pages:
        return None
    return max(0, int(limit) - int(pages[0]) * os.sysconf("SC_PAGE_SIZE"))


def _line(path: Path, name: str) -> int | None:
    for line in _text(path).splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == name and words[1].isdigit():
            return int(words[1])
    return None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
