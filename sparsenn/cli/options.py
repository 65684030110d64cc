"""The options of the verbs that read a dataset, each declared once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from sparsenn.errors import UsageError

__all__ = [
    "WIDEST",
    "BatchSize",
    "Bias",
    "Device",
    "Devices",
    "Json",
    "Kernel",
    "LadderDataset",
    "LadderSamples",
    "Layers",
    "MemoryLimit",
    "Neurons",
    "NoCompaction",
    "NoDeduplication",
    "NoMerging",
    "Output",
    "Plot",
    "Precision",
    "ProgressFlag",
    "Prune",
    "Report",
    "Reproducible",
    "Resume",
    "Samples",
    "Seed",
    "Sizes",
    "Source",
    "Stats",
    "Steps",
    "Stream",
    "Trace",
    "Verify",
    "WeightMemory",
    "Widths",
    "check_finite",
    "sizes_from",
    "whole_numbers",
    "widths_from",
]

WIDEST = 1 << 20
"""Largest width of a dense layer that is asked for, and largest size of any random problem."""

MOST_DIGITS = 18
"""Of a whole number: it fits into 64 bits."""

_PROBLEM = "Problem"
_SPEED = "Speed and memory"
_REPORT = "Verification and reports"

Source = Annotated[
    str,
    typer.Argument(
        metavar="DATASET",
        help="A folder in the challenge's official layout, an .h5 file of a dataset or a model, a model in .onnx, "
        ".keras, .npz or .safetensors, or a name such as radixnet-1024x120.",
    ),
]
Neurons = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="Width of the network, if a folder holds several.", rich_help_panel=_PROBLEM),
]
Layers = Annotated[
    int | None,
    typer.Option(metavar="L", min=1, help="Take the first L layers only.", rich_help_panel=_PROBLEM),
]
Bias = Annotated[
    float | None,
    typer.Option(metavar="B", help="Bias of every layer, in place of the dataset's.", rich_help_panel=_PROBLEM),
]
Samples = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="Take the first N samples (rows) only.", rich_help_panel=_PROBLEM),
]
LadderDataset = Annotated[
    str, typer.Option("--dataset", metavar="DATASET", help="A folder in the official layout, an .h5 file, or a name.")
]
LadderSamples = Annotated[
    int | None,
    typer.Option(
        "--samples",
        metavar="N",
        min=1,
        max=2**31 - 1,
        help="Number of samples: the first of a dataset, or random ones if there is no dataset.",
        rich_help_panel=_PROBLEM,
    ),
]
Stream = Annotated[
    bool,
    typer.Option(
        "--stream",
        help="Read, compute and write at the same time, in pieces, within --memory-limit: neither samples nor outputs "
        "need to fit into memory. Samples are those of a dataset's .h5 file, or of --inputs in .npy, .h5 (a matrix "
        "inputs), .parquet, or the challenge's images in .tsv or .tsv.gz; --output is .tsv (categories), .npy or .h5.",
        rich_help_panel=_PROBLEM,
    ),
]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="With --stream or a cluster: resume an earlier run into --output, if there was one.",
        rich_help_panel=_REPORT,
    ),
]
Widths = Annotated[
    str | None,
    typer.Option(
        metavar="N,N,...", help="Widths of the rows, then of each dense layer's outputs.", rich_help_panel=_PROBLEM
    ),
]
Sizes = Annotated[
    str | None,
    typer.Option(
        metavar="NAME=N,...",
        help="Of conv2d: channels, height, width, filters, side (of a filter) and padding. Of gemm: m (rows), k (terms "
        "of a sum) and n (columns). Those left out keep their defaults.",
        rich_help_panel=_PROBLEM,
    ),
]
Seed = Annotated[
    int, typer.Option(metavar="S", min=0, help="Seed of random rows and weights.", rich_help_panel=_PROBLEM)
]
Device = Annotated[
    str,
    typer.Option(
        "--device",
        "-d",
        metavar="auto|cpu|cuda[:i]",
        help="Where to compute; also reference, the slow float64 oracle.",
        rich_help_panel=_SPEED,
        show_default=False,
    ),
]
Devices = Annotated[
    str | None,
    typer.Option(
        metavar="all|I,I,...|cpu",
        help="In place of --device: all GPUs, or those with these numbers. They share the samples; results are those "
        "of one, unless their last bits depend on the batch size.",
        rich_help_panel=_SPEED,
    ),
]
Kernel = Annotated[
    str,
    typer.Option(
        "--kernel",
        "-k",
        metavar="NAME",
        help="Kernel for the sparse layers (spmspm); without sparse layers, for the convolutions (conv2d), or else for "
        "the dense layers (mlp). sparsenn kernels list shows them; other layers are left to auto.",
        rich_help_panel=_SPEED,
        show_default=False,
    ),
]
Precision = Annotated[
    str,
    typer.Option(
        metavar="auto|float32|tf32|float16|float64",
        help="Precision of the products of dense layers and convolutions and, on some GPUs, of sparse layers with many "
        "weights. auto is float64 for models that need it, else float32. float64 is for weights of very different "
        "magnitudes: it is slower, and applies to all layers, their sums and hidden values. --device auto then takes "
        "the CPU; GPUs have no convolutions and poolings in float64.",
        rich_help_panel=_SPEED,
    ),
]
BatchSize = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="Samples computed at a time.", rich_help_panel=_SPEED),
]
MemoryLimit = Annotated[
    float | None,
    typer.Option(
        metavar="GB",
        help="Memory for the samples computed at a time, in 10⁹ bytes; inputs, weights and results are extra. With "
        "--stream: all memory for samples, including those read and those to be written.",
        rich_help_panel=_SPEED,
    ),
]
WeightMemory = Annotated[
    float | None,
    typer.Option(
        metavar="GB",
        help="Memory that weights may take on the device, in 10⁹ bytes; if they take more, they are prepared in parts.",
        rich_help_panel=_SPEED,
    ),
]
NoCompaction = Annotated[
    bool, typer.Option("--no-compaction", help="Do not drop rows that are all zero.", rich_help_panel=_SPEED)
]
NoDeduplication = Annotated[
    bool, typer.Option("--no-deduplication", help="Compute equal rows separately.", rich_help_panel=_SPEED)
]
NoMerging = Annotated[
    bool,
    typer.Option(
        "--no-merging", help="Compute neurons with equal weights and bias separately.", rich_help_panel=_SPEED
    ),
]
Reproducible = Annotated[
    bool,
    typer.Option(
        "--reproducible",
        help="Outputs have the same bits whatever the batch size, memory, threads and other samples.",
        rich_help_panel=_SPEED,
    ),
]
Prune = Annotated[
    float | None,
    typer.Option(
        metavar="SHARE",
        help="For a model: keep this share of each layer's weights, such as 0.05, the largest by magnitude, and set "
        "all others to zero. Shows what speed sparsity would give; accuracy is lost.",
        rich_help_panel=_SPEED,
    ),
]
Steps = Annotated[
    str | None,
    typer.Option(
        metavar="CxHxW,STEP,...",
        help="For weights alone (.npz, .safetensors), unless they are fully connected layers with ReLU between them: "
        "the shape of the images, if there are any, and what is applied, in order: names of layers in the file, "
        "activations such as relu, relu6 or tanh, softmax, flatten, max_pool2, avg_pool3/2 (window/stride).",
        rich_help_panel=_PROBLEM,
    ),
]
Verify = Annotated[
    bool | None,
    typer.Option(
        "--verify/--no-verify",
        help="Compare the categories with the true ones; by default, if these are known.",
        rich_help_panel=_REPORT,
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="For a dataset, .tsv: the categories in the official form, samples counted from 1; .h5: outputs and "
        "categories. For a model, .tsv, .csv or .npy: the class of each sample, counted from 0 or, in text, by name if "
        "the model has names, or the outputs if there are no classes; .npz, .h5 or .parquet: the outputs, and the "
        "classes if there are any.",
        rich_help_panel=_REPORT,
    ),
]
Json = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE|-", help="The result as JSON; - prints it, and only it, to stdout.", rich_help_panel=_REPORT
    ),
]
Stats = Annotated[
    bool,
    typer.Option(
        "--stats",
        "-v",
        help="Add a table by layer: what ran it, and its share, by multiply-adds, of the time and estimate of the step "
        "that it is part of. If threads share the rows, the numbers of rows computed and edges performed may differ "
        "from run to run; the outputs do not.",
        rich_help_panel=_REPORT,
    ),
]
Plot = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Draw rows, density and time by layer: .png, .svg or .pdf.", rich_help_panel=_REPORT
    ),
]
Report = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.html",
        help="A single page that opens offline: summary, plan, pictures and tables by layer, machine.",
        rich_help_panel=_REPORT,
    ),
]
Trace = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Write a timeline of batches, steps, copies and waits: .json or .json.gz, for ui.perfetto.dev. On a "
        "GPU, they also become NVTX ranges.",
        rich_help_panel=_REPORT,
    ),
]
ProgressFlag = Annotated[
    bool | None,
    typer.Option("--progress/--no-progress", help="Show progress on stderr; by default, only on a terminal."),
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


def whole_numbers(
    text: str,
    fault: str,
    *,
    least: int = 1,
    most: int = 10**MOST_DIGITS - 1,
    fits: Callable[[tuple[int, ...]], bool] = lambda numbers: True,
) -> tuple[int, ...]:
    """Return whole numbers that are separated by commas; blanks around them are passed over.

    Parameters
    ----------
    fault : the message where they are not what they should be: what was given, and what to give.
    least, most : the smallest and the largest that a number may be.
    fits : whether they are right together.

    Raises
    ------
    UsageError
        They are not what they should be.
    """
    parts = [part.strip() for part in text.split(",")]
    numbers = tuple(int(part) for part in parts if part.isascii() and part.isdigit() and len(part) <= MOST_DIGITS)
    if len(numbers) < len(parts) or min(numbers) < least or max(numbers) > most or not fits(numbers):
        raise UsageError(fault)
    return numbers


def widths_from(text: str) -> tuple[int, ...]:
    """Return the widths that `--widths` names.

    Raises
    ------
    UsageError
        It is not two or more whole numbers from 1 to 2^20, separated by commas.
    """
    fault = (
        f"--widths {text}: take two or more whole numbers from 1 to {WIDEST:,}, separated by commas, as in 72,64,64,4"
    )
    return whole_numbers(text, fault, most=WIDEST, fits=lambda widths: len(widths) >= 2)


def sizes_from(text: str, form: str, usual: Sequence[int]) -> tuple[int, ...]:
    """Return the sizes that `--sizes` names.

    Parameters
    ----------
    text : `name=number` of some sizes, separated by commas.
    form : the sizes' names, separated by commas; those in brackets may be 0.
    usual : the sizes of those that are not named; of what is in brackets 0 where it says nothing.

    Raises
    ------
    UsageError
        A name is none of the form, or is given twice; or a number is not whole, from 1 to 2^20, in brackets from 0.
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
