"""The device's roofs: measured once, then read from the cache folder.

The file `ceilings.json` of the cache folder holds a record a device. One that is damaged, or that another version of
this package or of the driver left, is measured anew and replaced.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sparsenn.errors import FileFormatError, ResourceError
from sparsenn.runtime.storage import package_version, read_record, write_record
from sparsenn.studies.measure.meter import Identity, Meter, Roofs

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
