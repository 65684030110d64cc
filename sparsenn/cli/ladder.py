"""`sparsenn ladder`: what each optimisation of an operation buys on this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from sparsenn.cli import options
from sparsenn.cli.console import console, reporting
from sparsenn.cli.exits import ExitCode
from sparsenn.cli.targets import STDOUT, check_target
from sparsenn.errors import UsageError

__all__ = ["ladder"]

_OF_DATASETS = ("dataset", "neurons", "layers", "limit_inputs")
_OF_RANDOM_PROBLEMS = ("rows", "widths", "seed")


def ladder(
    context: typer.Context,
    operation: Annotated[str, typer.Argument(metavar="OPERATION", help="An operation with a ladder, such as spmspm.")],
    dataset: Annotated[
        str,
        typer.Option(metavar="DATASET", help="A folder in the official layout, an .h5 file, or a name."),
    ] = "radixnet-1024x120",
    neurons: options.Neurons = None,
    layers: options.Layers = None,
    limit_inputs: options.LimitInputs = 1200,
    rows: options.Rows = None,
    widths: options.Widths = None,
    seed: options.Seed = 0,
    device: options.Device = "auto",
    runs: Annotated[int, typer.Option(metavar="R", min=1, help="Timed runs of each layer, after a checked one.")] = 20,
    sweep: Annotated[
        bool, typer.Option("--sweep", help="Vary what can be varied, such as rows a thread, instead of all rungs.")
    ] = False,
    json: options.Json = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw a bar a kernel: .png, .svg or .pdf.")] = None,
    progress: options.ProgressFlag = None,
) -> None:
    """Run all kernels of an operation on one problem, from plain to best: each is checked, then timed.

    Sparse operations take a dataset; mlp, a stack of dense layers, and train, an epoch of its training, take random
    rows and weights.

    Exit code 0: done, and every kernel agrees with the reference.
    Exit code 1: one does not; it is not timed.
    Exit code 2: bad usage or bad input.

    \b
    Examples:
      sparsenn ladder spmspm
      sparsenn ladder spmspm --device cuda --json ladder.json --plot ladder.png
      sparsenn ladder spmspm --device cuda --sweep --layers 4
      sparsenn ladder sort --device cuda
      sparsenn ladder mlp --rows 5120000 --device cuda
      sparsenn ladder train --device cuda
    """
    from sparsenn.backends import backend_for
    from sparsenn.backends.ladder import ladder_for, rungs_of
    from sparsenn.engine.ladder import run_ladder
    from sparsenn.report import PLOT_SUFFIXES, ladder_table

    check_target("--json", None if json == STDOUT else json)
    check_target("--plot", plot, PLOT_SUFFIXES)
    chosen = ladder_for(operation)
    random = chosen.problem
    _refuse_given(context, operation, _OF_RANDOM_PROBLEMS if random is None else _OF_DATASETS)
    sizes = chosen.widths if widths is None else options.widths_from(widths)
    rungs_of(operation, backend_for(device).device, sweep)  # whatever is refused is refused before anything is read
    with reporting(progress) as report:
        how: dict[str, Any] = {"device": device, "runs": runs, "sweep": sweep, "progress": report}
        if random is None:
            from sparsenn.datasets import load

            problem = load(dataset, neurons=neurons, layers=layers, limit_inputs=limit_inputs, progress=report)
            origin: dict[str, Any] = {"dataset": problem.name}
            result = run_ladder(operation, problem.network, problem.inputs, **how)
        else:
            origin = {"widths": sizes, "seed": seed}
            result = run_ladder(operation, *random(chosen.rows if rows is None else rows, sizes, seed), **how)
    console(sys.stderr if json == STDOUT else sys.stdout).print(ladder_table(result))
    _deliver(result, origin, json, plot)
    if not result.correct:
        raise typer.Exit(ExitCode.VERIFICATION_FAILED)


def _refuse_given(context: typer.Context, operation: str, names: tuple[str, ...]) -> None:
    """Refuse options that were given though the operation has no use for them."""
    given = [name for name in names if getattr(context.get_parameter_source(name), "name", "") != "DEFAULT"]
    if given:
        options_given = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise UsageError(
            f"{options_given}: the ladder of {operation} takes "
            + ("a dataset, no random problem" if names is _OF_RANDOM_PROBLEMS else "a random problem, no dataset")
            + "; leave the option out"
        )


def _deliver(result: Any, origin: dict[str, Any], json: Path | None, plot: Path | None) -> None:
    from sparsenn.cli.targets import write_json
    from sparsenn.report import draw_ladder, ladder_record, to_json

    if json is not None:
        write_json(json, to_json(origin | ladder_record(result)))
    if plot is not None:
        draw_ladder(result, plot)
