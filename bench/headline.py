"""The table and the picture that the README begins with: a few rows of result files, beside what else would be used.

Only the standard library is used, but to draw.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from results_file import ResultError, ResultFile

__all__ = ["Compared", "compared", "draw", "texts"]

BLUE, GREY = "#2f6fab", "#9a9a9a"


@dataclass(frozen=True)
class Compared:
    """What a task takes with sparsenn and with what else would be used: seconds, each timed in the same run.

    Parameters
    ----------
    task, peer : in words.
    source : the result file that says so.
    """

    task: str
    peer: str
    peer_seconds: float
    seconds: float
    source: ResultFile

    @property
    def factor(self) -> float:
        """How many times as long the other takes."""
        return self.peer_seconds / self.seconds


def compared(tables: Mapping[str, Sequence[ResultFile]]) -> list[Compared]:
    """Return the rows of the headline.

    Raises
    ------
    ResultError
        A result file or a row is not there.
    """
    pruned = "LeNet-300-100, pruned to 1.9 % of its weights, 10,000 images"
    return [
        _of_models(f"{pruned}, on a CPU", tables),
        _of_session(f"{pruned}, on a GPU", tables, "lenet300-float32"),
        _of_challenge("the challenge, 1024 × 120, 60,000 images, on a CPU", tables),
        _of_session("the challenge, 1024 × 120, 60,000 images, on a GPU", tables, "challenge-1024"),
    ]


def texts(row: Compared) -> tuple[str, str, str, str, str]:
    """Return the cells of a row."""
    return (
        row.task,
        row.peer,
        _told(row.peer_seconds),
        _told(row.seconds),
        f"{row.factor:.0f} ×" if row.factor >= 10 else f"{row.factor:.1f} ×",
    )


def draw(rows: Sequence[Compared], path: Path) -> None:
    """Draw two bars a row, on a logarithmic scale, as SVG.

    Raises
    ------
    ImportError
        matplotlib is not installed.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"svg.hashsalt": "headline", "svg.fonttype": "none", "font.size": 9}):
        figure = Figure((7.2, 2.8), layout="constrained")
        axes = figure.subplots()
        for place, row in enumerate(reversed(rows)):
            _, peer, slow, fast, factor = texts(row)
            axes.barh(place + 0.18, 1e3 * row.peer_seconds, 0.3, color=GREY)
            axes.barh(place - 0.18, 1e3 * row.seconds, 0.3, color=BLUE)
            axes.text(1e3 * row.peer_seconds, place + 0.18, f"  {peer}: {slow}", va="center", fontsize=8)
            axes.text(1e3 * row.seconds, place - 0.18, f"  sparsenn: {fast}, {factor}", va="center", fontsize=8)
        names = [", ".join(row.task.split(", ")[:1] + row.task.split(", ")[-1:]) for row in reversed(rows)]
        axes.set_yticks(range(len(rows)), names)
        axes.set_xscale("log")
        axes.set_xlabel("time (ms), logarithmic")
        axes.set_xlim(right=5e4 * max(row.peer_seconds for row in rows))
        axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(path, metadata={"Date": None})


def _row(
    tables: Mapping[str, Sequence[ResultFile]], name: str, key: str, value: str, gpu: bool
) -> tuple[dict[str, Any], ResultFile]:
    for result in tables.get(name, ()):
        if bool(result.machine.get("gpu")) == gpu:
            for row in result.rows:
                if row.get(key) == value:
                    return row, result
    raise ResultError(f"no result file of table {name}, {'with' if gpu else 'without'} a GPU, has {key}={value}")


def _of_models(task: str, tables: Mapping[str, Sequence[ResultFile]]) -> Compared:
    row, source = _row(tables, "models", "key", "lenet300-dns-10000", gpu=False)
    names = {"onnxruntime": "ONNX Runtime", "torch": "PyTorch", "scipy": "SciPy"}
    milliseconds, peer = min((row[key], name) for key, name in names.items() if row.get(key) is not None)
    return Compared(task, peer, 1e-3 * milliseconds, 1e-3 * row["milliseconds"], source)


def _of_challenge(task: str, tables: Mapping[str, Sequence[ResultFile]]) -> Compared:
    (engine, source), (loop, _) = (
        _row(tables, "network", "method", method, gpu=False) for method in ("engine", "SciPy loop")
    )
    return Compared(task, "SciPy, layer by layer", loop["seconds"], engine["seconds"], source)


def _of_session(task: str, tables: Mapping[str, Sequence[ResultFile]], key: str) -> Compared:
    row, source = _row(tables, "session", "key", key, gpu=True)
    peer = row["peer"].removesuffix(", ReLU in the product").replace(", graph", " in a CUDA graph")
    return Compared(task, peer, 1e-3 * row["peer_milliseconds"], 1e-3 * row["milliseconds"], source)


def _told(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"
