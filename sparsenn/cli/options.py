"""The options of the verbs that read a dataset, each declared once."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from sparsenn.errors import UsageError

__all__ = [
    "BatchSize",
    "Bias",
    "Device",
    "Json",
    "Kernel",
    "Layers",
    "LimitInputs",
    "MemoryLimit",
    "Neurons",
    "NoCompaction",
    "NoDedup",
    "NoMerge",
    "Output",
    "Plot",
    "ProgressFlag",
    "Source",
    "Stats",
    "Verify",
    "WeightMemory",
    "check_finite",
]

_PROBLEM = "Problem"
_SPEED = "Speed and memory"
_REPORT = "Verification and reports"

Source = Annotated[
    str,
    typer.Argument(
        metavar="DATASET",
        help="A folder in the challenge's official layout, an .h5 file, or a name such as radixnet-1024x120.",
    ),
]
Neurons = Annotated[
    int | None,
    typer.Option(
        metavar="N", min=1, help="Width of the network, where a folder holds several.", rich_help_panel=_PROBLEM
    ),
]
Layers = Annotated[
    int | None,
    typer.Option(metavar="L", min=1, help="Take the first L layers only.", rich_help_panel=_PROBLEM),
]
Bias = Annotated[
    float | None,
    typer.Option(metavar="B", help="Bias of every layer, in place of the dataset's.", rich_help_panel=_PROBLEM),
]
LimitInputs = Annotated[
    int | None,
    typer.Option(metavar="K", min=1, help="Take the first K inputs only.", rich_help_panel=_PROBLEM),
]
Device = Annotated[
    str,
    typer.Option(
        metavar="auto|cpu|cuda[:i]",
        help="Where to compute; reference is the slow float64 oracle.",
        rich_help_panel=_SPEED,
        show_default=False,
    ),
]
Kernel = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="Kernel of every layer, one of those that sparsenn kernels lists.",
        rich_help_panel=_SPEED,
        show_default=False,
    ),
]
BatchSize = Annotated[
    int | None,
    typer.Option(metavar="K", min=1, help="Inputs computed at a time.", rich_help_panel=_SPEED),
]
MemoryLimit = Annotated[
    float | None,
    typer.Option(metavar="GB", help="Memory that the computation may take, in 10⁹ bytes.", rich_help_panel=_SPEED),
]
WeightMemory = Annotated[
    float | None,
    typer.Option(
        metavar="GB",
        help="Memory that weights may take on the device, in 10⁹ bytes; what takes more is prepared in parts.",
        rich_help_panel=_SPEED,
    ),
]
NoCompaction = Annotated[
    bool, typer.Option("--no-compaction", help="Keep computing rows that are all zero.", rich_help_panel=_SPEED)
]
NoDedup = Annotated[
    bool, typer.Option("--no-dedup", help="Compute equal rows each for itself.", rich_help_panel=_SPEED)
]
NoMerge = Annotated[
    bool,
    typer.Option(
        "--no-merge", help="Compute neurons of equal weights and bias each for itself.", rich_help_panel=_SPEED
    ),
]
Verify = Annotated[
    bool | None,
    typer.Option(
        "--verify/--no-verify",
        help="Compare the categories with the truth; unless given, where there is one.",
        rich_help_panel=_REPORT,
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help=".tsv: the categories in the official form; .h5: outputs and categories.",
        rich_help_panel=_REPORT,
    ),
]
Json = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE|-", help="The result as JSON; - prints it, and only it, to stdout.", rich_help_panel=_REPORT
    ),
]
Stats = Annotated[bool, typer.Option("--stats", help="Add the table by layer.", rich_help_panel=_REPORT)]
Plot = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Draw rows, density and time by layer: .png, .svg or .pdf.", rich_help_panel=_REPORT
    ),
]
ProgressFlag = Annotated[
    bool | None,
    typer.Option("--progress/--no-progress", help="Show progress on stderr; unless given, only on a terminal."),
]


def check_finite(option: str, value: float | None) -> None:
    """Refuse NaN and infinity, which parse as numbers.

    Raises
    ------
    UsageError
        The value is given and not finite; the message names the option.
    """
    if value is not None and not math.isfinite(value):
        raise UsageError(f"{option} {value} is not a finite number")
