"""`sparsenn train`: train an MLP."""

from __future__ import annotations

import json as json_format
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparsenn import __version__
from sparsenn.cli import data_options, options
from sparsenn.cli.console import compilation_reported, console, drawn_progress, reporting
from sparsenn.cli.files import HDF5_SUFFIXES, STDOUT, check_files, drawing, tracing, write_document
from sparsenn.errors import UsageError, unknown_name
from sparsenn.runtime.spans import span

if TYPE_CHECKING:
    from sparsenn.training.loop import Epoch


_SCALES = ("auto", "standard", "none")


def train(
    data: Annotated[
        Path,
        typer.Argument(
            metavar="DATA",
            help="A table (.csv, .tsv or .parquet), IDX images, .h5 or .npz (inputs, and targets or labels).",
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The model: an .h5 file.")],
    hidden: Annotated[
        str, typer.Option(metavar="N,N,…", help="Widths of the hidden layers; by default, there are none.")
    ] = "",
    activation: Annotated[
        str, typer.Option(metavar="NAME", help="Activation of the hidden layers, such as relu, sigmoid, tanh or none.")
    ] = "relu",
    output_activation: Annotated[
        str, typer.Option(metavar="NAME", help="Activation of the last layer, likewise.")
    ] = "none",
    epochs: Annotated[int, typer.Option(metavar="E", min=1, help="Passes over all rows.")] = 100,
    batch_size: Annotated[int, typer.Option(metavar="K", min=1, help="Rows per mini-batch.")] = 64,
    learning_rate: Annotated[float, typer.Option(metavar="R", help="Factor of the gradient.")] = 0.01,
    momentum: Annotated[float, typer.Option(metavar="M", help="Factor of the previous step.")] = 0.0,
    loss: Annotated[
        str | None,
        typer.Option(
            metavar="mse|cross_entropy",
            help="Loss to minimise; by default, cross_entropy for classes, and mse otherwise.",
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(metavar="S", min=0, help="Seed of the initial parameters and the order of rows.")
    ] = 0,
    labels: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Labels of IDX images; by default, the file beside them, named as for MNIST."
        ),
    ] = None,
    targets: Annotated[
        list[str],
        typer.Option(
            metavar="N|NAME",
            help="The last N columns of a table, by default one, or a column by name, repeatable: what to predict. "
            "Texts are classes.",
        ),
    ] = [],  # noqa: B006 (typer copies it)
    classes: Annotated[
        bool, typer.Option("--classes", help="The one target column is a class, counted from 0; several are one-hot.")
    ] = False,
    ignore: Annotated[list[str], typer.Option(metavar="NAME", help="Leave out a column of a table; repeatable.")] = [],  # noqa: B006
    text: Annotated[
        list[str],
        typer.Option(
            metavar="NAME", help="Take the numbers in a column of a table as categories, or as classes; repeatable."
        ),
    ] = [],  # noqa: B006
    impute: Annotated[
        bool,
        typer.Option(
            "--impute",
            help="Replace missing values of a table, which are refused otherwise, by their column's mean or most "
            "frequent text.",
        ),
    ] = False,
    scale: Annotated[
        str,
        typer.Option(
            metavar="auto|standard|none",
            help="standard scales each column of inputs, and of numeric targets, to mean 0 and standard deviation 1; "
            "the model does the same with its inputs. auto does so for tables only.",
        ),
    ] = "auto",
    validation: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Data for evaluation, not for training.")
    ] = None,
    validation_labels: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Labels of --validation, like --labels.")
    ] = None,
    validate_every: Annotated[
        int, typer.Option(metavar="E", min=0, help="Epochs between evaluations; 0: only at the end.")
    ] = 1,
    device: options.Device = "auto",
    kernel: Annotated[
        str,
        typer.Option(
            "--kernel", "-k", metavar="NAME", help="A kernel listed by sparsenn kernels list train.", show_default=False
        ),
    ] = "auto",
    precision: Annotated[
        str, typer.Option(metavar="float32|tf32|float16", help="Precision of matrix products.")
    ] = "float32",
    checkpoint: Annotated[Path | None, typer.Option(metavar="FILE", help="Save the state here, for --resume.")] = None,
    checkpoint_every: Annotated[
        float, typer.Option(metavar="S", min=0, help="Minimum seconds between two checkpoints; 0: each epoch.")
    ] = 0.0,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume from the checkpoint, or start anew if there is none.")
    ] = False,
    json: options.Json = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the losses by epoch: .png, .svg or .pdf.")
    ] = None,
    trace: options.Trace = None,
    progress: options.ProgressFlag = None,
) -> None:
    """Train a multi-layer perceptron by mini-batch gradient descent, and write it to a file that predict takes.

    The same data, options and machine give the same bits, even if the training is killed and resumed.

    Exit code 0: done.
    Exit code 2: bad usage or bad input, or the loss became infinite or NaN.

    \b
    Examples:
      sparsenn train abalone.csv --hidden 32,32 --output model.h5
      sparsenn train table.csv --targets 2 --activation tanh --output model.h5
      sparsenn train iris.csv --targets species --hidden 16 --output iris.h5
      sparsenn train houses.csv --targets price --impute --output houses.h5
      sparsenn train digits.csv --classes --hidden 64 --output digits.h5
      sparsenn train abalone.npz --checkpoint state.h5 --resume --output model.h5
    """
    if targets or ignore or text or impute:
        option = "--targets" if targets else "--ignore" if ignore else "--text" if text else "--impute"
        data_options.check_table(option, data, validation)
    if scale not in _SCALES:
        raise unknown_name("scale", scale, _SCALES)
    if validation is None and (validation_labels or validate_every != 1):
        raise UsageError("--validation-labels and --validate-every go with --validation, which is not given")
    if checkpoint is None and (checkpoint_every or resume):
        raise UsageError("--checkpoint-every and --resume go with --checkpoint, which is not given")
    check_files(
        {"DATA": data, "--labels": labels, "--validation": validation, "--validation-labels": validation_labels},
        {"--output": output, "--checkpoint": checkpoint, "--json": json, "--plot": plot, "--trace": trace},
        HDF5_SUFFIXES,
    )
    widths = _hidden(hidden)
    with reporting(progress):  # importing takes a second, too
        from sparsenn.training.choice import choose

        choose(device, kernel, precision)  # fails before anything is read
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
        "checkpoint_every": checkpoint_every,
        "resume": resume,
    }
    kind: dict[str, Any] = {**_targets(targets), "classes": classes, "ignore": ignore, "text": text, "impute": impute}
    begun = "there was no checkpoint to resume from; training started anew"
    notes = [begun] if resume and checkpoint is not None and not checkpoint.exists() else []
    with tracing(trace):
        from sparsenn.training import read_data
        from sparsenn.training import train as run

        with _epochs(progress) as report:
            with span(f"read {data.name}", "read"):
                rows = read_data(data, labels=labels, **kind)
            held_out = None
            if validation is not None:
                outputs = rows.targets.shape[1] if rows.classes else None
                with span(f"read {validation.name}", "read"):
                    held_out = read_data(validation, labels=validation_labels, outputs=outputs, **kind, like=rows)
            if scale == "auto":
                scale = "none" if rows.encoding is None else "standard"
            result = run(rows, validation=held_out, scale=scale, report=report, **how)
        with span("report", "write"):
            from sparsenn.io import write_model
            from sparsenn.report import draw_losses, loss_table, to_json, training_record, training_summary
            from sparsenn.training import trained_model

            provenance = {
                "data": data.name,
                "made by": f"sparsenn {__version__}",
                "epochs": str(result.epochs),
                "options": json_format.dumps(result.options),
            }
            model = trained_model(result, rows, provenance)
            write_model(output, model)  # first, so that no later failure loses the training
            screen = console(sys.stderr if json == STDOUT else sys.stdout)
            screen.print(training_summary(data.name, result, model, [*notes, *filter(None, [rows.note])]))
            screen.print(loss_table(result))
            if json is not None:
                write_document(json, to_json({"data": data.name} | training_record(result)))
            if plot is not None:
                with drawing(plot):
                    draw_losses(result, plot, data.name)


def _targets(names: list[str]) -> dict[str, Any]:
    if len(names) == 1 and names[0].isascii() and names[0].isdigit():
        fault = f"--targets {names[0]}: take a number of columns from 1, or a column's name"
        return {"targets": options.whole_numbers(names[0], fault)[0]}
    return {"target": names}


def _hidden(text: str) -> tuple[int, ...]:
    most = options.WIDEST
    fault = f"--hidden {text}: take whole numbers from 1 to {most:,}, separated by commas, as in 500,500"
    return options.whole_numbers(text, fault, most=most) if text else ()


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
