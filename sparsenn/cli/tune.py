"""`sparsenn kernels tune`: find the numbers that a kernel is fastest with on this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from sparsenn.cli import options
from sparsenn.cli.console import console, reporting
from sparsenn.cli.exits import ExitCode
from sparsenn.cli.given import refuse_given_options
from sparsenn.cli.overwrites import check_apart
from sparsenn.cli.problems import OF_DATASETS, OF_RANDOM_PROBLEMS, ProblemOptions, refuse_given
from sparsenn.cli.sources import check_dataset_source
from sparsenn.cli.targets import STDOUT, check_target, write_json
from sparsenn.errors import UsageError

__all__ = ["tune"]

_OF_TUNING = ("values", *OF_DATASETS, "samples", *OF_RANDOM_PROBLEMS, "device", "runs")
"""Parameters that have no use where nothing is measured."""


def tune(
    context: typer.Context,
    rung: Annotated[str | None, typer.Argument(metavar="KERNEL", help="A kernel with parameters to vary.")] = None,
    operation: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The kernel's operation, if several operations have a kernel of that name."),
    ] = None,
    show: Annotated[bool, typer.Option("--show", help="Show the stored parameters, without measuring.")] = False,
    forget: Annotated[
        bool, typer.Option("--forget", help="Drop the stored parameters of all kernels or of one.")
    ] = False,
    values: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=N,N,...", help="Try only these values of a parameter; repeatable."),
    ] = None,
    dataset: options.LadderDataset = "radixnet-1024x120",
    neurons: options.Neurons = None,
    layers: options.Layers = 1,
    samples: options.LadderSamples = None,
    widths: options.Widths = None,
    sizes: options.Sizes = None,
    seed: options.Seed = 0,
    device: options.Device = "auto",
    runs: Annotated[
        int, typer.Option(metavar="R", min=1, help="Timed runs with each choice of parameters, after a checked one.")
    ] = 10,
    json: options.Json = None,
    progress: options.ProgressFlag = None,
) -> None:
    """Try all parameters that a kernel can run with, and keep the fastest for this device and these sizes.

    Every choice is checked against the reference, then timed. The fastest is stored in tuning.json in the cache folder,
    and infer then uses it wherever that kernel runs at such sizes; it changes results only by the order of sums.

    Exit code 0: done, and every choice agrees with the reference.
    Exit code 1: one does not; it is not timed.
    Exit code 2: bad usage or bad input.

    \b
    Examples:
      sparsenn kernels tune panel --samples 10000
      sparsenn kernels tune panel --values lanes=64,128 --values chunk_rows=2048
      sparsenn kernels tune coarsened --operation spmspm --device cuda
      sparsenn kernels tune --show
      sparsenn kernels tune panel --forget
    """
    check_dataset_source(dataset)
    check_target("--json", None if json == STDOUT else json)
    check_apart({"--dataset": dataset}, {"--json": json})
    if show and forget:
        raise UsageError("--show and --forget cannot be combined; forget, then show")
    if show or forget:
        refuse_given_options(context, _OF_TUNING, f"goes with tuning, not with {'--show' if show else '--forget'}")
    if forget:
        refuse_given_options(context, ["json"], "goes with tuning or --show, not with --forget")
        _forget(rung, operation)
    elif show:
        _show(rung, operation, json)
    else:
        source = ProblemOptions(dataset, neurons, layers, samples, widths, seed, sizes)
        _tune(context, rung, operation, _limits(values or []), source, device, runs, json, progress)


def _limits(texts: list[str]) -> dict[str, tuple[int, ...]]:
    """Return the values that `--values` names, by the number's name."""
    limits = {}
    for text in texts:
        name, equals, listed = text.rpartition("=")
        fault = f"--values {text}: name a parameter and whole numbers to try, as in lanes=64,128"
        if not equals:
            raise UsageError(fault)
        limits[name] = tuple(dict.fromkeys(options.whole_numbers(listed, fault, least=0)))
    return limits


def _tune(
    context: typer.Context,
    rung: str | None,
    operation: str | None,
    limits: dict[str, tuple[int, ...]],
    source: ProblemOptions,
    device: str,
    runs: int,
    json: Path | None,
    progress: bool | None,
) -> None:
    with reporting(progress):  # importing takes a second, too
        from sparsenn.backends import backend_for
        from sparsenn.report import to_json
        from sparsenn.report.tuning import tuned_table, tuning_record, tuning_tables
        from sparsenn.runtime.storage import make_cache_folder
        from sparsenn.studies.ladder import ladder_for
        from sparsenn.studies.tuning import keep, limited, tunable_named, tunables
        from sparsenn.studies.tuning import tune as run

    kind = backend_for(device).device
    if rung is None:
        known = ", ".join(f"{found.name} ({found.operation})" for found in tunables(kind))
        raise UsageError(f"which kernel? Those with parameters to tune on {kind}: {known or 'none'}; or give --show")
    chosen = limited(tunable_named(rung, kind, operation), limits)
    ladder = ladder_for(chosen.operation)
    refuse_given(context, ladder)
    make_cache_folder()  # for the parameters that are found
    with reporting(progress) as report:
        problem, origin = source.problem(ladder, report)
        result = run(chosen, problem, device=device, runs=runs, progress=report)
    stored = keep(result)
    screen = console(sys.stderr if json == STDOUT else sys.stdout)
    for table in tuning_tables(result):
        screen.print(table)
    screen.print("Stored:")
    screen.print(tuned_table(stored))
    if json is not None:
        write_json(json, to_json(origin | tuning_record(result, stored)))
    if not result.correct:
        raise typer.Exit(ExitCode.VERIFICATION_FAILED)


def _show(rung: str | None, operation: str | None, json: Path | None) -> None:
    from sparsenn.backends.tuning_table import readable_table
    from sparsenn.report import to_json
    from sparsenn.report.tuning import tuned_record, tuned_table

    entries = [
        entry for entry in readable_table() if rung in (None, entry.rung) and operation in (None, entry.operation)
    ]
    screen = console(sys.stderr if json == STDOUT else sys.stdout)
    screen.print(tuned_table(entries) if entries else "No parameters are stored.")
    if json is not None:
        write_json(json, to_json({"stored": tuned_record(entries)}))


def _forget(rung: str | None, operation: str | None) -> None:
    from sparsenn.backends.tuning_table import forget

    dropped = forget(rung, operation)
    console().print(f"{dropped:,} {'entry' if dropped == 1 else 'entries'} dropped.")
