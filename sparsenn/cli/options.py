"""The options of the verbs that read a dataset, each declared once."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from sparsenn.errors import UsageError

WIDEST = 1 << 20
"""Largest width of a dense layer that is asked for, and largest size of any random problem."""

MOST_DIGITS = 18  # of a whole number: it fits into 64 bits

_SAMPLE_SHAPE = re.compile(r"(?:([^=]+)=)?([1-9][0-9]{0,9}(?:x[1-9][0-9]{0,9})*)")


Source = Annotated[
    str,
    typer.Argument(
        metavar="DATASET", help="A name such as radixnet-1024x120, a folder in the official layout, or an .h5 file."
    ),
]
Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="A model: .h5, .onnx, .keras, or weights in .npz or .safetensors.", show_default=False
    ),
]
Neurons = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Width of the network, if a folder holds several.")
]
Layers = Annotated[int | None, typer.Option(metavar="L", min=1, help="Take the first L layers only.")]
Bias = Annotated[float | None, typer.Option(metavar="B", help="Bias of every layer, in place of the dataset's.")]
LimitInputs = Annotated[int | None, typer.Option(metavar="N", min=1, help="Take the first N inputs only.")]
LadderDataset = Annotated[
    str, typer.Option("--dataset", metavar="DATASET", help="A folder in the official layout, an .h5 file, or a name.")
]
LadderRows = Annotated[
    int | None,
    typer.Option(
        "--rows", metavar="N", min=1, max=2**31 - 1, help="Rows of the problem: the first of a dataset, or random ones."
    ),
]
RowCounts = Annotated[str, typer.Option("--rows", metavar="N,N,...", help="Rows per call.")]
Stream = Annotated[bool, typer.Option("--stream", help="Read, compute and write in chunks, within --memory-limit.")]
Resume = Annotated[bool, typer.Option("--resume", help="Resume an interrupted run with --stream.")]
Widths = Annotated[
    str | None, typer.Option(metavar="N,N,...", help="Widths of the rows, then of each dense layer's outputs.")
]
Sizes = Annotated[
    str | None,
    typer.Option(
        metavar="NAME=N,...",
        help="conv2d: channels, height, width, filters, side (of a filter), padding. gemm: m (rows), k (terms of a "
        "sum), n (columns). Those left out keep their defaults.",
    ),
]
Seed = Annotated[int, typer.Option(metavar="S", min=0, help="Seed of random rows and weights.")]
Device = Annotated[
    str,
    typer.Option(
        "--device",
        "-d",
        metavar="auto|cpu|cuda[:i]",
        help="Where to compute; also reference, the slow float64 oracle.",
        show_default=False,
    ),
]
Devices = Annotated[
    str | None,
    typer.Option(metavar="all|I,I,...|cpu", help="In place of --device: several GPUs, which share the rows."),
]
Kernel = Annotated[
    str,
    typer.Option(
        "--kernel",
        "-k",
        metavar="NAME",
        help="Kernel of sparse layers, or else of convolutions or dense ones; see kernels list.",
        show_default=False,
    ),
]
Precision = Annotated[
    str,
    typer.Option(
        metavar="auto|float32|tf32|float16|float64",
        help="Precision of products; lower ones are faster.",
        show_default=False,
    ),
]
BatchSize = Annotated[int | None, typer.Option(metavar="N", min=1, help="Rows computed at a time.")]
MemoryLimit = Annotated[str | None, typer.Option(metavar="SIZE", help="Memory for rows in flight, such as 500M or 2G.")]
WeightMemory = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="Memory for weights on the device, such as 8G; more are copied in sections."),
]
Compaction = Annotated[bool, typer.Option("--compaction/--no-compaction", help="Drop rows that are all zero.")]
Deduplication = Annotated[bool, typer.Option("--deduplication/--no-deduplication", help="Compute equal rows once.")]
Merging = Annotated[bool, typer.Option("--merging/--no-merging", help="Compute equal neurons once.")]
Reproducible = Annotated[
    bool, typer.Option("--reproducible", help="Same bits whatever the batch size, memory and threads.")
]
Prune = Annotated[
    float | None,
    typer.Option(
        metavar="SHARE",
        help="Keep this share of each layer's weights, such as 0.05, the largest by magnitude: shows what speed "
        "sparsity would give; accuracy is lost.",
    ),
]
Steps = Annotated[
    str | None,
    typer.Option(
        metavar="CxHxW,STEP,...",
        help="For .npz and .safetensors whose layers are not all fully connected with ReLU between: the shape of "
        "images, and layers, activations and pools in order, such as 1x28x28,conv,relu,max_pool2,flatten,fc.",
    ),
]
Shape = Annotated[
    str | None,
    typer.Option(
        metavar="SIZExSIZE...",
        help="For an .onnx model that leaves sizes open: those of one sample, as 3x224x224, or of each input, as "
        "image=3x224x224,mask=224x224.",
    ),
]
Verify = Annotated[
    bool | None,
    typer.Option("--verify/--no-verify", help="Compare the categories with the true ones; by default, if known."),
]
Json = Annotated[Path | None, typer.Option(metavar="FILE|-", help="The result as JSON; - prints only JSON.")]
Stats = Annotated[bool, typer.Option("--stats", help="Add a table by layer: kernel, rows, density, time.")]
Plot = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Draw rows, density and time by layer: .png, .svg or .pdf.")
]
Report = Annotated[
    Path | None,
    typer.Option("--report", metavar="FILE.html", help="A single page with tables and pictures that opens offline."),
]
Trace = Annotated[Path | None, typer.Option(metavar="FILE", help="A timeline for ui.perfetto.dev: .json or .json.gz.")]
ProgressFlag = Annotated[
    bool | None, typer.Option("--progress/--no-progress", help="Show progress on stderr; by default, on a terminal.")
]


def check_finite(option: str, value: float | None) -> None:
    """Refuse NaN and infinity, which parse as numbers."""
    if value is not None and not math.isfinite(value):
        raise UsageError(f"{option} {value} is not a finite number")


def byte_count(option: str, text: str | None) -> int | None:
    """Return the bytes that a size such as `2G` stands for; a plain number counts bytes."""
    if text is None:
        return None
    from sparsenn.runtime.memory import bytes_of

    plain = text.strip()
    if plain.isascii() and plain.isdigit() and len(plain) < 40 and int(plain):
        return int(plain)
    return bytes_of(text, option)


def sample_shape(text: str | None) -> tuple[int, ...] | dict[str, tuple[int, ...]] | None:
    """Return the sizes that `--shape` names, as `read_model` takes them."""
    if text is None:
        return None
    found = [_SAMPLE_SHAPE.fullmatch(each) for each in text.split(",")]
    shapes = {each[1]: tuple(map(int, each[2].split("x"))) for each in found if each}
    if len(shapes) < len(found) or (None in shapes and len(found) > 1):
        raise UsageError(f"--shape {text}: give sizes of one sample, as 3x224x224 or image=3x224x224,mask=224x224")
    return shapes.get(None, shapes)


def row_counts(text: str) -> tuple[int, ...]:
    """Return the numbers of rows per call that `--rows` names."""
    most = 2**31 - 1
    fault = f"--rows {text}: take whole numbers from 1 to {most:,}, separated by commas, as in 1,64,1024,10000"
    return whole_numbers(text, fault, most=most)


def whole_numbers(
    text: str,
    fault: str,
    *,
    least: int = 1,
    most: int = 10**MOST_DIGITS - 1,
    fits: Callable[[tuple[int, ...]], bool] = lambda numbers: True,
) -> tuple[int, ...]:
    """Return whole numbers that are separated by commas; blanks around them are passed over.

    fault : the message where they are not what they should be: what was given, and what to give.
    least, most : the smallest and the largest that a number may be.
    fits : whether they are right together.
    """
    parts = [part.strip() for part in text.split(",")]
    numbers = tuple(int(part) for part in parts if part.isascii() and part.isdigit() and len(part) <= MOST_DIGITS)
    if len(numbers) < len(parts) or min(numbers) < least or max(numbers) > most or not fits(numbers):
        raise UsageError(fault)
    return numbers


def widths_from(text: str) -> tuple[int, ...]:
    """Return the widths that `--widths` names."""
    fault = (
        f"--widths {text}: take two or more whole numbers from 1 to {WIDEST:,}, separated by commas, as in 72,64,64,4"
    )
    return whole_numbers(text, fault, most=WIDEST, fits=lambda widths: len(widths) >= 2)


def sizes_from(text: str, form: str, usual: Sequence[int]) -> tuple[int, ...]:
    """Return the sizes that `--sizes` names.

    text : `name=number` of some sizes, separated by commas.
    form : the sizes' names, separated by commas; those in brackets may be 0.
    usual : the sizes of those that are not named; of what is in brackets 0 where it says nothing.
    """
    needed, _, rest = form.partition("[")
    names = [*needed.split(","), *filter(None, rest.rstrip("]").split(","))]
    fewest = 1 + needed.count(",")
    fault = (
        f"--sizes {text}: give {', '.join(names)}, whole numbers from 1 to {WIDEST:,}"
        + (f" ({rest.strip(',]')} from 0)" if rest else "")
        + f", separated by commas, as in {_named(names, usual)}"
    )
    found = dict(zip(names, [*usual, *[0] * (len(names) - len(usual))], strict=True)) | _by_name(text, names, fault)
    sizes = tuple(found.values())
    if min(sizes[:fewest]) < 1:
        raise UsageError(fault)
    return sizes


def _named(names: Sequence[str], sizes: Sequence[int]) -> str:
    return ",".join(f"{name}={size}" for name, size in zip(names, sizes, strict=False))


def _by_name(text: str, names: Sequence[str], fault: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for part in text.split(","):
        name, _, number = (word.strip() for word in part.partition("="))
        if name not in names or name in found:
            raise UsageError(fault)
        (found[name],) = whole_numbers(number, fault, least=0, most=WIDEST)
    return found
