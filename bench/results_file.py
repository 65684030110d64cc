"""Result files: what a benchmark measured, on what, of which commit. Tables of the README and docs are made from them.

A file is one JSON object::

    table          name of the table that its rows fill
    title          one line above the table
    machine        cpu, cores (usable ones), memory_gib, system; gpu, gpu_memory_gib and driver, null without a GPU
    versions       python, sparsenn and the libraries that decide the speed
    commit         git commit of the code, "-dirty" where the tree held changes
    date           UTC, ISO 8601
    configuration  what was run: shapes, seeds, switches, repetitions
    columns        [{"key": …, "label": …, "format": a Python format string such as "{:.2f}"}, …], in order
    rows           [{key: number, string, boolean or null, …}, …]; every key belongs to a column or adds detail
    notes          lines below the table
    command        what was run, from the repository's root; empty in files from before it was recorded

Only the standard library is used, so that files can be read and tables written without the package installed.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

__all__ = ["ROOT", "Column", "ResultError", "ResultFile", "commit_of_tree"]
__all__ += ["read_results", "replace_text", "results_path", "write_results"]

ROOT = Path(__file__).resolve().parents[1]
LIBRARIES = ("sparsenn", "numpy", "scipy", "numba", "llvmlite", "h5py", "pyarrow", "cupy-cuda12x", "cupy-cuda13x")


class ResultError(Exception):
    """A result file, or what should become one, breaks the schema."""


@dataclass(frozen=True)
class Column:
    """One column: the key in each row, the heading, and the format string that shows a value."""

    key: str
    label: str
    format: str = "{}"

    def show(self, value: Any) -> str:
        """Return the cell's text; a dash where nothing was measured."""
        return "–" if value is None else self.format.format(value)


@dataclass(frozen=True)
class ResultFile:
    """The contents of a result file, checked.

    Raises
    ------
    ResultError
        There is no row, or a column's key is in none.
    """

    table: str
    title: str
    machine: dict[str, Any]
    versions: dict[str, str]
    commit: str
    date: str
    configuration: dict[str, Any]
    columns: tuple[Column, ...]
    rows: tuple[dict[str, Any], ...]
    notes: tuple[str, ...] = field(default=())
    command: str = ""

    def __post_init__(self) -> None:
        for column in self.columns:
            if not any(column.key in row for row in self.rows):
                raise ResultError(f"column {column.key!r} is in no row")

    def cells(self) -> list[list[str]]:
        """Return the text of each cell, row by row."""
        return [[column.show(row.get(column.key)) for column in self.columns] for row in self.rows]


def write_results(
    path: str | os.PathLike[str],
    *,
    table: str,
    title: str,
    columns: Iterable[tuple[str, ...]],
    rows: Iterable[Mapping[str, Any]],
    configuration: Mapping[str, Any],
    notes: Iterable[str] = (),
) -> ResultFile:
    """Write a result file with the command, the machine, the versions, the commit and the date of now.

    Parameters
    ----------
    path : file to write; its folder is created. `results_path` names the usual place.
    columns : key, label and, if it is not {}, format of each.
    rows : one mapping a row; NumPy scalars become plain numbers.

    Raises
    ------
    ResultError
        What `ResultFile` refuses, or a value that JSON cannot hold. Nothing is written then.
    """
    try:
        text = json.dumps({"rows": [dict(row) for row in rows], "configuration": dict(configuration)}, default=_plain)
        plain = json.loads(text, parse_constant=_not_finite)
    except (TypeError, ValueError) as error:
        raise ResultError(f"{path}: {error}") from error
    result = ResultFile(
        table=table,
        title=title,
        machine=machine(),
        versions=installed_versions(),
        commit=commit_of_tree(),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        configuration=plain["configuration"],
        columns=tuple(Column(*column) for column in columns),
        rows=tuple(plain["rows"]),
        notes=tuple(notes),
        command=_command(),
    )
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    replace_text(Path(path), json.dumps(asdict(result), indent=2, ensure_ascii=False) + "\n")
    return result


def read_results(path: str | os.PathLike[str]) -> ResultFile:
    """Read and check a result file.

    Raises
    ------
    ResultError
        The file is missing, is not JSON, has a part too few or too many, or breaks a rule of `ResultFile`.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"), parse_constant=_not_finite)
        content["columns"] = tuple(Column(**column) for column in content.get("columns", ()))
        content["rows"] = tuple(content.get("rows", ()))
        content["notes"] = tuple(content.get("notes", ()))
        content.pop("history", None)  # of older files
        return ResultFile(**content)
    except (OSError, ValueError, TypeError, AttributeError, ResultError) as error:
        raise ResultError(f"{path}: {error}") from error


def results_path(name: str, folder: str | None = None) -> Path:
    """Return bench/results/<folder>/<name>.json, the folder named after CPU, cores and GPU of this machine if None."""
    if not folder:
        facts = machine()
        words = f"{facts['cpu']} {facts['cores']} cores {facts['gpu'] or ''}"
        folder = "-".join(re.findall(r"[a-z0-9]+", re.sub(r"\((r|tm)\)", " ", words.lower())))
    return ROOT / "bench" / "results" / folder / f"{name}.json"


def machine() -> dict[str, Any]:
    """Describe this machine: CPU model, usable cores, memory, system, and GPU with its driver where there is one."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    gpu = _output("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits") or ""
    name, memory, driver = [part.strip() for part in gpu.splitlines()[0].split(",")] if gpu else (None, None, None)
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(pages / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "gpu": name,
        "gpu_memory_gib": round(float(memory) / 1024, 1) if memory else None,
        "driver": driver,
    }


def replace_text(path: Path, text: str) -> None:
    """Write `text` so that `path` holds either all of it or what it held before."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(path.stat().st_mode if path.exists() else 0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _plain(value: Any) -> Any:
    """Return NumPy scalars and arrays as JSON has them."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"JSON cannot hold {value!r}")


def _not_finite(constant: str) -> float:
    raise ValueError(f"{constant} is no measurement; use null where there is none")


def _cpu() -> str:
    model = re.search(r"^Model name:\s*(.+)$", _output("lscpu") or "", re.MULTILINE)
    return model[1].strip() if model else platform.processor() or platform.machine()


def installed_versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for library in LIBRARIES:
        try:
            found[library] = version(library)
        except PackageNotFoundError:
            continue
    return found


def commit_of_tree() -> str:
    """Return the commit; results and the pages that are made from them do not make a tree dirty.

    Where the tree is a copy away from its repository, the environment variable SPARSENN_COMMIT says which.
    """
    if named := os.environ.get("SPARSENN_COMMIT"):
        return named
    commit = _output("git", "-C", str(ROOT), "rev-parse", "HEAD")
    if commit is None:
        return "unknown"
    changes = _output(
        "git", "-C", str(ROOT), "status", "--porcelain", "--", ".", ":!bench/results", ":!README.md", ":!docs"
    )
    return commit + ("-dirty" if changes else "")


def _command() -> str:
    """Return the command line of this process, with paths in the repository as seen from its root, others from home."""
    words = ["python", *sys.orig_argv[1:]]
    short = [word.replace(f"{ROOT}{os.sep}", "").replace(f"{Path.home()}{os.sep}", "~/") for word in words]
    return shlex.join(short)


def _output(*command: str) -> str | None:
    """Return what a command prints, or None where it is missing or fails."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=30, check=True, env={**os.environ, "LC_ALL": "C"}
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
