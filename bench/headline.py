"""The tables and the picture that the README begins with: rows of result files, beside the best alternative.

Only the standard library is used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

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
class Line:
    """A row of the headline: which row of which table it shows.

    Parameters
    ----------
    group : for whom it is: practitioner or researcher.
    task : in words.
    device : CPU or GPU, which the table was recorded on.
    key : names the row.
    peers : names of alternatives by the column that has their time.
    own : column of sparsenn's time.
    unit : of these columns, in seconds.
    edges : of the challenge's network, times its images; 0 for other tasks.
    """

    group: str
    task: str
    device: str
    table: str
    key: str
    peers: Mapping[str, str]
    own: str = "milliseconds"
    unit: float = 1e-3
    edges: int = 0


@dataclass(frozen=True)
class Compared:
    """Seconds of a line's task with the best alternative and with sparsenn, both of one result file."""

    line: Line
    peer: str
    peer_seconds: float
    seconds: float
    source: ResultFile


ENGINES = {
    "onnxruntime": "ONNX Runtime",
    "openvino": "OpenVINO",
    "deepsparse": "DeepSparse 1.8",
    "torch": "PyTorch",
}
GRAPH = {"torch_milliseconds": "PyTorch in a CUDA graph"}
LOOP = {"loop_seconds": "SciPy, layer by layer"}
SPARSE = {"peer_milliseconds": "PyTorch, sparse times dense"}

LENET, ROW = (
    "LeNet-300-100, 1.9 % of the weights, 10,000 images",
    "sparse layers 4,096 wide, 5 % of the weights, one row",
)
RESNET, MOBILENET = "ResNet-50, 10 % of the weights", "MobileNetV2, 10 % of the weights, one image"
CHALLENGE = "challenge 1024 × 120, 60,000 images"

LINES = (
    Line("practitioner", LENET, "CPU", "models", "lenet300-dns-10000", ENGINES),
    Line("practitioner", f"4 {ROW}", "CPU", "cpu-rows", "4 × 4096, 205 an output-1", ENGINES),
    Line("practitioner", f"{RESNET}, one image", "CPU", "cpu-convolutions", "resnet50-0.1-1", ENGINES),
    Line("practitioner", f"{RESNET}, 16 images", "CPU", "cpu-convolutions", "resnet50-0.1-16", ENGINES),
    Line("practitioner", MOBILENET, "CPU", "cpu-convolutions", "mobilenet_v2-0.1-1", ENGINES),
    Line("practitioner", f"3 {ROW}", "GPU", "few-rows", "float32-4096-0.05-1", GRAPH, "bound_milliseconds"),
    Line(
        *("practitioner", f"{RESNET}, one image", "GPU", "gpu-convolutions", "resnet50-0.1-1-float32", GRAPH),
        "bound_milliseconds",
    ),
    *(
        Line("researcher", f"{CHALLENGE}, {savings}", "CPU", "network", key, LOOP, "seconds", 1.0, EDGES)
        for savings, key in (("all savings", "1024-engine"), ("nothing saved", "1024-engine, nothing saved"))
    ),
    Line("researcher", f"{CHALLENGE}, all savings", "GPU", "session", "challenge-1024", SPARSE, edges=EDGES),
    Line(
        "researcher", f"{CHALLENGE}, outputs not merged", "GPU", "sparse-layers", "unmerged-1024", SPARSE, edges=EDGES
    ),
)


def compared(tables: Tables) -> list[Compared]:
    """Return the rows of the headline, each of the last result file that has it.

    Raises
    ------
    ResultError
        A result file or a row is missing.
    """
    found = []
    for line in LINES:
        rows = [
            (row, result)
            for result in tables.get(line.table, ())
            if bool(result.machine.get("gpu")) == (line.device == "GPU")
            for row in result.rows
            if row.get("key") == line.key
        ]
        if not rows:
            raise ResultError(f"no result file of table {line.table}, on a {line.device}, has {line.key}")
        row, result = rows[-1]
        peer, name = min((row[key], name) for key, name in line.peers.items() if row.get(key) is not None)
        found.append(Compared(line, name, peer * line.unit, row[line.own] * line.unit, result))
    return found


def texts(row: Compared) -> tuple[str, str, str, str, str]:
    """Return the cells of a row."""
    factor = row.peer_seconds / row.seconds
    return (
        f"{row.line.task}, {row.line.device}",
        row.peer,
        _duration(row.peer_seconds),
        _duration(row.seconds),
        f"{factor:.0f} ×" if factor >= 10 else f"{factor:.1f} ×",
    )


def rate_text(row: Compared) -> str:
    """Return a task's rate with sparsenn, in TeraEdges/s."""
    return _three_digits(row.line.edges / row.seconds / 1e12)


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


def _duration(seconds: float) -> str:
    if seconds >= 1:
        return f"{_three_digits(seconds)} s"
    return f"{_three_digits(1e3 * seconds)} ms" if seconds >= 1e-4 else f"{_three_digits(1e6 * seconds)} µs"


def _three_digits(value: float) -> str:
    return f"{value:#.3g}".rstrip(".")
