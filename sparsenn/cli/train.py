"""`sparsenn train`: train an MLP."""

from __future__ import annotations

import json as json_format
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparsenn import __version__
from sparsenn.cli import data_options, options
from sparsenn.cli.console import compilation_reported, console, drawn_progress, reporting
from sparsenn.cli.given import refuse_given_options
from sparsenn.cli.overwrites import check_apart
from sparsenn.cli.sources import check_sources
from sparsenn.cli.targets import (
    HDF5_SUFFIXES,
    STDOUT,
    TRACE_SUFFIXES,
    check_plot,
    check_target,
    drawing,
    tracing,
    write_json,
)
from sparsenn.errors import unknown_name
from sparsenn.runtime.spans import span

if TYPE_CHECKING:
    from sparsenn.training import TrainingData, TrainingResult
    from sparsenn.training.loop import Epoch

__all__ = ["train"]

_NETWORK = "Network"
_DESCENT = "Gradient descent"
_FILES = "Files and reports"

_OF_TABLES = ("targets", "target", "ignore", "text", "impute")
"""Parameters that only tables have a use for."""

_SCALES = ("auto", "standard", "none")


@dataclass(frozen=True)
class _Targets:
    """Where results go, besides the summary."""

    output: Path
    checkpoint: Path | None
    json: Path | None
    plot: Path | None
    trace: Path | None

    def check(self) -> None:
        """Refuse whatever could not be written, before anything is computed."""
        check_target("--output", self.output, HDF5_SUFFIXES)
        check_target("--checkpoint", self.checkpoint)
        check_target("--json", None if self.json == STDOUT else self.json)
        check_target("--trace", self.trace, TRACE_SUFFIXES)
        check_plot(self.plot)


def train(
    context: typer.Context,
    data: Annotated[
        Path,
        typer.Argument(
            metavar="DATA",
            help="A table (.csv, .tsv or .parquet), IDX images, .h5 or .npz (inputs, and targets or labels).",
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="The model: an .h5 file.", rich_help_panel=_FILES)
    ],
    hidden: Annotated[
        str,
        typer.Option(
            metavar="N,N,…", help="Widths of the hidden layers; by default, there are none.", rich_help_panel=_NETWORK
        ),
    ] = "",
    activation: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Activation of the hidden layers, such as relu, sigmoid, tanh or none.",
            rich_help_panel=_NETWORK,
        ),
    ] = "relu",
    output_activation: Annotated[
        str,
        typer.Option(metavar="NAME", help="Activation of the last layer, likewise.", rich_help_panel=_NETWORK),
    ] = "none",
    epochs: Annotated[
        int, typer.Option(metavar="E", min=1, help="Passes over all rows.", rich_help_panel=_DESCENT)
    ] = 100,
    batch_size: Annotated[
        int, typer.Option(metavar="K", min=1, help="Rows per mini-batch.", rich_help_panel=_DESCENT)
    ] = 64,
    learning_rate: Annotated[
        float, typer.Option(metavar="R", help="Factor of the gradient.", rich_help_panel=_DESCENT)
    ] = 0.01,
    momentum: Annotated[
        float, typer.Option(metavar="M", help="Factor of the previous step.", rich_help_panel=_DESCENT)
    ] = 0.0,
    loss: Annotated[
        str | None,
        typer.Option(
            metavar="mse|cross_entropy",
            help="Loss to minimise; by default, cross_entropy for classes, and mse otherwise.",
            rich_help_panel=_DESCENT,
        ),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(
            metavar="S", min=0, help="Seed of the initial parameters and the order of rows.", rich_help_panel=_DESCENT
        ),
    ] = 0,
    labels: data_options.Labels = None,
    targets: Annotated[
        int,
        typer.Option(metavar="N", min=1, help="Target columns of a table, the last ones.", rich_help_panel="Data"),
    ] = 1,
    target: Annotated[
        list[str],
        typer.Option(
            metavar="NAME",
            help="The column of a table to predict, by default the last one; repeatable. Texts are classes.",
            rich_help_panel="Data",
        ),
    ] = [],  # noqa: B006 (typer copies it)
    classes: data_options.Classes = False,
    ignore: Annotated[
        list[str],
        typer.Option(metavar="NAME", help="Leave out a column of a table; repeatable.", rich_help_panel="Data"),
    ] = [],  # noqa: B006
    text: Annotated[
        list[str],
        typer.Option(
            metavar="NAME",
            help="Take the numbers in a column of a table as categories, or as classes; repeatable.",
            rich_help_panel="Data",
        ),
    ] = [],  # noqa: B006
    impute: Annotated[
        str | None,
        typer.Option(
            metavar="mean",
            help="Replace missing values of a table, which are refused otherwise, by their column's mean or most "
            "frequent text.",
            rich_help_panel="Data",
        ),
    ] = None,
    scale: Annotated[
        str,
        typer.Option(
            metavar="auto|standard|none",
            help="standard scales each column of inputs, and of numeric targets, to mean 0 and standard deviation 1; "
            "the model does the same with its inputs. auto does so for tables only.",
            rich_help_panel="Data",
        ),
    ] = "auto",
    validation: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Data for evaluation, not for training.", rich_help_panel="Data"),
    ] = None,
    validation_labels: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Labels of --validation, like --labels.", rich_help_panel="Data")
    ] = None,
    validate_every: Annotated[
        int,
        typer.Option(
            metavar="E", min=0, help="Epochs between evaluations; 0: only at the end.", rich_help_panel="Data"
        ),
    ] = 1,
    device: options.Device = "auto",
    kernel: Annotated[
        str,
        typer.Option(
            "--kernel",
            "-k",
            metavar="NAME",
            help="A kernel listed by sparsenn kernels list train.",
            rich_help_panel="Speed and memory",
            show_default=False,
        ),
    ] = "auto",
    precision: Annotated[
        str,
        typer.Option(
            metavar="float32|tf32|float16", help="Precision of matrix products.", rich_help_panel="Speed and memory"
        ),
    ] = "float32",
    checkpoint: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Save the state here, for --resume.", rich_help_panel=_FILES),
    ] = None,
    checkpoint_seconds: Annotated[
        float,
        typer.Option(
            metavar="S", min=0, help="Minimum seconds between two checkpoints; 0: each epoch.", rich_help_panel=_FILES
        ),
    ] = 0.0,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Resume from the checkpoint, or start anew if there is none.", rich_help_panel=_FILES
        ),
    ] = False,
    json: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE|-", help="The result as JSON; - prints it, and only it, to stdout.", rich_help_panel=_FILES
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw the losses by epoch: .png, .svg or .pdf.", rich_help_panel=_FILES),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write a timeline of epochs, evaluations and checkpoints: .json or .json.gz, for ui.perfetto.dev.",
            rich_help_panel=_FILES,
        ),
    ] = None,
    progress: options.ProgressFlag = None,
) -> None:
    """Train a multi-layer perceptron by mini-batch gradient descent, and write it to a file that infer takes.

    The same data, options and machine give the same bits, even if the training is killed and resumed.

    Exit code 0: done.
    Exit code 2: bad usage or bad input, or the loss became infinite or NaN.

    \b
    Examples:
      sparsenn train abalone.train --hidden 32,32 --output model.h5
      sparsenn train table.csv --targets 2 --activation tanh --output model.h5
      sparsenn train iris.csv --target species --hidden 16 --output iris.h5
      sparsenn train houses.csv --target price --impute mean --output houses.h5
      sparsenn train digits.csv --classes --hidden 64 --output digits.h5
      sparsenn train a.data --checkpoint state.h5 --resume --output model.h5
    """
    data_options.refuse_idle(context, [data] if validation is None else [data, validation], _OF_TABLES)
    if target:
        refuse_given_options(context, ("targets",), "says how many columns are targets, which --target names")
    if impute not in (None, "mean"):
        raise unknown_name("way to impute", impute, ["mean"])
    if scale not in _SCALES:
        raise unknown_name("scale", scale, _SCALES)
    if validation is None:
        refuse_given_options(
            context, ("validation_labels", "validate_every"), "goes with --validation, which is not given"
        )
    if checkpoint is None:
        refuse_given_options(context, ("checkpoint_seconds", "resume"), "goes with --checkpoint, which is not given")
    check_sources(data, labels, validation, validation_labels)
    files = _Targets(output, checkpoint, json, plot, trace)
    files.check()
    check_apart(
        {"DATA": data, "--labels": labels, "--validation": validation, "--validation-labels": validation_labels},
        {"--output": output, "--checkpoint": checkpoint, "--json": json, "--plot": plot, "--trace": trace},
    )
    widths = _hidden(hidden)
    with reporting(progress):  # importing takes a second, too
        _check_choice(device, kernel, precision)
    how: dict[str, Any] = {
        "hidden": widths,
        "activation": activation,
        "output_activation": output_activation,
        "epochs": epochs,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "momentum": momentum,
        "loss": loss,
        "validate_every": validate_every,
        "seed": seed,
        "device": device,
        "kernel": kernel,
        "precision": precision,
        "checkpoint": checkpoint,
        "checkpoint_every": checkpoint_seconds,
        "resume": resume,
    }
    kind: dict[str, Any] = {
        "targets": targets,
        "target": target,
        "classes": classes,
        "ignore": ignore,
        "text": text,
        "impute": impute is not None,
    }
    begun = "there was no checkpoint to resume from; training started anew"
    notes = [begun] if resume and checkpoint is not None and not checkpoint.exists() else []
    with tracing(trace):
        rows, result = _run(data, labels, validation, validation_labels, kind, scale, how, progress)
        with span("report", "write"):
            _deliver(data.name, rows, result, [*notes, *([] if rows.note is None else [rows.note])], files)


def _hidden(text: str) -> tuple[int, ...]:
    most = options.WIDEST
    fault = f"--hidden {text}: take whole numbers from 1 to {most:,}, separated by commas, as in 500,500"
    return options.whole_numbers(text, fault, most=most) if text else ()


def _check_choice(device: str, kernel: str, precision: str) -> None:
    from sparsenn.training.choice import choose

    choose(device, kernel, precision)


def _run(
    path: Path,
    labels: Path | None,
    validation: Path | None,
    validation_labels: Path | None,
    kind: dict[str, Any],
    scale: str,
    how: dict[str, Any],
    progress: bool | None,
) -> tuple[TrainingData, TrainingResult]:
    from sparsenn.training import read_data
    from sparsenn.training import train as run

    with _epochs(progress) as report:
        with span(f"read {path.name}", "read"):
            data = read_data(path, labels=labels, **kind)
        held_out = None
        if validation is not None:
            outputs = data.targets.shape[1] if data.classes else None
            with span(f"read {validation.name}", "read"):
                held_out = read_data(validation, labels=validation_labels, outputs=outputs, **kind, like=data)
        if scale == "auto":
            scale = "none" if data.encoding is None else "standard"
        return data, run(data, validation=held_out, scale=scale, report=report, **how)


@contextmanager
def _epochs(wanted: bool | None) -> Iterator[Callable[[Epoch], None]]:
    """Yield what reports epochs: a bar on a terminal, lines elsewhere if wanted, else nothing."""
    terminal = sys.stderr.isatty()
    if wanted is False or (wanted is None and not terminal):
        yield lambda epoch: None
    elif not terminal:
        with compilation_reported():
            yield lambda epoch: print(
                f"epoch {epoch.number:,} of {epoch.total:,}: {_state(epoch)}", file=sys.stderr, flush=True
            )
    else:
        with drawn_progress() as draw:
            yield lambda epoch: draw("epochs", epoch.number, epoch.total, _state(epoch))


def _state(epoch: Epoch) -> str:
    held_out = epoch.validation
    accuracy = "" if held_out is None or held_out.accuracy is None else f" ({100 * held_out.accuracy:.2f} %)"
    validation = "" if held_out is None else f", validation {held_out.value:.5g}{accuracy}"
    return f"loss {epoch.loss:.5g}{validation}, {epoch.rows_per_second:,.0f} rows/s"


def _deliver(name: str, data: TrainingData, result: TrainingResult, notes: list[str], files: _Targets) -> None:
    """Write the model first: whatever fails after that, the training is not lost."""
    from sparsenn.io import write_model
    from sparsenn.report import draw_losses, loss_table, to_json, training_record, training_summary
    from sparsenn.training import trained_model

    provenance = {
        "data": name,
        "made by": f"sparsenn {__version__}",
        "epochs": str(result.epochs),
        "options": json_format.dumps(result.options),
    }
    model = trained_model(result, data, provenance)
    write_model(files.output, model)
    screen = console(sys.stderr if files.json == STDOUT else sys.stdout)
    screen.print(training_summary(name, result, model, notes))
    screen.print(loss_table(result))
    if files.json is not None:
        write_json(files.json, to_json({"data": name} | training_record(result)))
    if files.plot is not None:
        with drawing(files.plot):
            draw_losses(result, files.plot, name)
