"""Results as plain dictionaries and JSON."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from sparsenn import __version__
from sparsenn.backends.cpu.processor import host_machine
from sparsenn.engine import Result


def to_record(result: Result, verified: bool | None = None) -> dict[str, Any]:
    """Return a result as a dictionary, for `to_json`.

    The keys are inputs, neurons, layers, edges, device, plan, notes (sentences on what did not go as planned),
    categories (counted from 1, as in the challenge's files), verified, seconds (read, plan, prepare, transfer,
    compile, compute, total), edges_per_second (None where no time was measured), performed_edges and per_layer, in
    this order.
    """
    seconds = result.seconds
    parts = {**asdict(seconds), "total": seconds.total}
    return {
        "inputs": result.inputs,
        "neurons": result.neurons,
        "layers": result.layers,
        "edges": result.edges,
        "device": result.plan.device,
        "plan": result.plan.to_dict(),
        "notes": result.notes,
        "categories": (result.categories + 1).tolist(),
        "verified": verified,
        "seconds": parts,
        "edges_per_second": result.edges_per_second,
        "performed_edges": result.performed_edges,
        "per_layer": [asdict(layer) for layer in result.statistics],
    }


def origin_record(name: str, provenance: Mapping[str, str]) -> dict[str, Any]:
    """Return the keys that say what was run where: dataset, provenance, version and machine."""
    machine = f"{host_machine().name}, {platform.system()} {platform.release()} {platform.machine()}"
    return {"dataset": name, "provenance": dict(provenance), "version": __version__, "machine": machine}


def to_json(record: dict[str, Any]) -> str:
    """Return a record as one JSON document, indented, ending with a line feed."""
    return json.dumps(_plain(record), indent=2, allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    """Turn NumPy numbers into Python's, tuples into lists, and what JSON cannot say (NaN, infinity) into None."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
