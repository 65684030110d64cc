"""The tables and the picture that the README begins with: rows of result files, beside the best alternative.

Only the standard library is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from results_file import ResultError, ResultFile

__all__ = ["PUBLISHED", "Compared", "compared", "picture", "rate_text", "texts"]

Tables = Mapping[str, Sequence[ResultFile]]

EDGES = 60_000 * 120 * 1024 * 32
"""Edges of the challenge's smallest problem, once for each image."""

PUBLISHED = {
    "champions of 2019: [Bisson and Fatica](http://abstractbook.ieee-hpec.org/session9.htm), one Tesla V100": "3.7",
    "champions of 2020: [Hidayetoğlu and others](https://www.carlpearson.net/publication/20200923_hidayetoglu_hpec/), "
    "many V100 GPUs": "up to 180",
}
"""Rates of the challenge's champions in TeraEdges/s, as the linked pages state them."""

LINE, LEFT, WIDTH, LONGEST = 17, 8, 480, 220
"""Pixels of the picture: height of a line, left margin, width, and length of the longest bar."""

STYLE = """
text { font: 12px system-ui, sans-serif; fill: #1c1e21 }
.task { font-weight: 600 }
.ground { fill: #ffffff } .peer { fill: #9a9a9a } .ours { fill: #2f6fab }
@media (prefers-color-scheme: dark) {
text { fill: #e6e6e6 } .ground { fill: #131416 } .peer { fill: #6e6e6e } .ours { fill: #5b9bd8 } }
"""


@dataclass(frozen=True)
class Compared:
    """Times of a task with sparsenn and with the best alternative, both of one result file.

    Parameters
    ----------
    group : str
        For whom it is: practitioner or researcher.
    task, peer : str
        In words.
    peer_seconds, seconds : float
        Of the alternative, and of sparsenn.
    source : ResultFile
        Where both stand.
    edges : int
        Of the challenge's network, times its images; 0 for other tasks.
    """

    group: str
    task: str
    peer: str
    peer_seconds: float
    seconds: float
    source: ResultFile
    edges: int = 0

    @property
    def factor(self) -> float:
        """How many times as long the alternative takes."""
        return self.peer_seconds / self.seconds


def compared(tables: Tables) -> list[Compared]:
    """Return the rows of the headline.

    Raises
    ------
    ResultError
        A result file or a row is missing.
    """
    challenge = "challenge 1024 × 120, 60,000 images"
    layers = "4 sparse layers 4,096 wide, 5 % of the weights, one row"
    sparse = "PyTorch, sparse times dense"
    rows: list[Callable[[], Compared]] = [
        lambda: _beside(tables, "LeNet-300-100, 1.9 % of the weights, 10,000 images", "models", "lenet300-dns-10000"),
        lambda: _beside(tables, layers, "cpu-rows", "4 × 4096, 205 an output-1"),
        lambda: _beside(tables, "ResNet-50, 10 % of the weights, one image", "cpu-convolutions", "resnet50-0.1-1"),
        lambda: _beside(tables, "ResNet-50, 10 % of the weights, 16 images", "cpu-convolutions", "resnet50-0.1-16"),
        lambda: _beside(
            tables, "MobileNetV2, 10 % of the weights, one image", "cpu-convolutions", "mobilenet_v2-0.1-1"
        ),
        lambda: _graph(tables, f"3 {layers[2:]}", "few-rows", "float32-4096-0.05-1"),
        lambda: _graph(
            tables, "ResNet-50, 10 % of the weights, one image", "gpu-convolutions", "resnet50-0.1-1-float32"
        ),
        lambda: _loop(tables, f"{challenge}, all savings", "engine"),
        lambda: _loop(tables, f"{challenge}, nothing saved", "engine, nothing saved"),
        lambda: _session(tables, f"{challenge}, all savings", "session", "challenge-1024", sparse),
        lambda: _session(tables, f"{challenge}, outputs not merged", "sparse-layers", "unmerged-1024", sparse),
    ]
    return [row() for row in rows]


def texts(row: Compared) -> tuple[str, str, str, str, str]:
    """Return the cells of a row."""
    return (
        row.task,
        row.peer,
        _duration(row.peer_seconds),
        _duration(row.seconds),
        f"{row.factor:.0f} ×" if row.factor >= 10 else f"{row.factor:.1f} ×",
    )


def rate_text(row: Compared) -> str:
    """Return a task's rate with sparsenn, in TeraEdges/s."""
    return _three_digits(row.edges / row.seconds / 1e12)


def picture(rows: Sequence[Compared]) -> str:
    """Return an SVG of two bars for each row, on a scale of its own; colours follow the reader's light or dark mode."""
    height = LINE * (4 * len(rows)) + 10
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'role="img">',
        f"<style>{STYLE}</style>",
        f'<rect class="ground" width="{WIDTH}" height="{height}"/>',
    ]
    for place, row in enumerate(rows):
        top = 4 * LINE * place + 4
        task, peer, slow, fast, factor = texts(row)
        longest = max(row.seconds, row.peer_seconds)
        bars = (("peer", row.peer_seconds, f"{peer.split(',')[0]} {slow}"), ("ours", row.seconds, f"{fast}, {factor}"))
        lines.append(f'<text class="task" x="{LEFT}" y="{top + 13}">{escape(task)}</text>')
        for number, (kind, seconds, text) in enumerate(bars, start=1):
            length, y = max(1.0, LONGEST * seconds / longest), top + LINE * number
            lines.append(
                f'<rect class="{kind}" x="{LEFT}" y="{y + 2}" width="{length:.1f}" height="{LINE - 4}"/>'
                f'<text x="{LEFT + length + 5:.1f}" y="{y + 13}">{escape(text)}</text>'
            )
    return "\n".join([*lines, "</svg>"]) + "\n"


def _row(tables: Tables, name: str, gpu: bool, **values: object) -> tuple[dict[str, Any], ResultFile]:
    """Return the row with these values of the last result file that has one, with a GPU or without, and that file."""
    for result in reversed(tables.get(name, ())):
        if bool(result.machine.get("gpu")) == gpu:
            for row in result.rows:
                if all(row.get(key) == value for key, value in values.items()):
                    return row, result
    wanted = ", ".join(f"{key}={value}" for key, value in values.items())
    raise ResultError(f"no result file of table {name}, {'with' if gpu else 'without'} a GPU, has {wanted}")


def _beside(tables: Tables, task: str, name: str, key: str) -> Compared:
    """Return a row of a CPU's table that has a column for each other engine."""
    row, source = _row(tables, name, False, key=key)
    names = {
        "onnxruntime": "ONNX Runtime",
        "openvino": "OpenVINO",
        "deepsparse": "DeepSparse 1.8",
        "torch": "PyTorch",
    }
    milliseconds, peer = min((row[each], name) for each, name in names.items() if row.get(each) is not None)
    return Compared("practitioner", f"{task}, CPU", peer, 1e-3 * milliseconds, 1e-3 * row["milliseconds"], source)


def _graph(tables: Tables, task: str, name: str, key: str) -> Compared:
    """Return a row of a GPU's table beside PyTorch in a CUDA graph."""
    row, source = _row(tables, name, True, key=key)
    peer = "PyTorch in a CUDA graph"
    seconds = 1e-3 * row["torch_milliseconds"], 1e-3 * row["bound_milliseconds"]
    return Compared("practitioner", f"{task}, GPU", peer, *seconds, source)


def _loop(tables: Tables, task: str, method: str) -> Compared:
    (row, source), (loop, _) = (_row(tables, "network", False, method=each) for each in (method, "SciPy loop"))
    seconds = loop["seconds"], row["seconds"]
    return Compared("researcher", f"{task}, CPU", "SciPy, layer by layer", *seconds, source, EDGES)


def _session(tables: Tables, task: str, name: str, key: str, peer: str) -> Compared:
    row, source = _row(tables, name, True, key=key, peer=peer)
    seconds = 1e-3 * row["peer_milliseconds"], 1e-3 * row["milliseconds"]
    return Compared("researcher", f"{task}, GPU", peer, *seconds, source, EDGES)


def _duration(seconds: float) -> str:
    if seconds >= 1:
        return f"{_three_digits(seconds)} s"
    return f"{_three_digits(1e3 * seconds)} ms" if seconds >= 1e-4 else f"{_three_digits(1e6 * seconds)} µs"


def _three_digits(value: float) -> str:
    return f"{value:#.3g}".rstrip(".")
