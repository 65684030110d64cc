"""`sparsenn kernels roofline`: what the device allows each kernel, beside what it takes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparsenn.cli import options
from sparsenn.cli.console import console, reporting
from sparsenn.cli.exits import ExitCode
from sparsenn.cli.files import STDOUT, check_files, drawing, write_document
from sparsenn.cli.problems import FIRST_LAYERS, FIRST_ROWS, ProblemOptions, known_roofs, refuse_sizes, refuse_unused
from sparsenn.errors import SparseNNError, UsageError
from sparsenn.printable import printable

if TYPE_CHECKING:
    from sparsenn.backends import Backend
    from sparsenn.studies.ladder import Ladder


def roofline(
    context: typer.Context,
    operation: Annotated[
        str | None,
        typer.Argument(
            metavar="OPERATION", help="An operation with a ladder, such as conv2d; by default, all of them."
        ),
    ] = None,
    dataset: options.LadderDataset = "radixnet-1024x120",
    neurons: options.Neurons = None,
    layers: options.Layers = None,
    rows: options.LadderRows = None,
    widths: options.Widths = None,
    sizes: options.Sizes = None,
    seed: options.Seed = 0,
    device: options.Device = "auto",
    runs: Annotated[int, typer.Option(metavar="R", min=1, help="Timed runs of each stage, after a checked one.")] = 10,
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure the device's ceilings anew, even if they are known.")
    ] = False,
    json: options.Json = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the roofline: .png, .svg or .pdf.")] = None,
    progress: options.ProgressFlag = None,
) -> None:
    """Show the device's ceilings, and for each kernel the time they allow and the time it takes.

    The ceilings are measured once and cached. Each kernel is checked, then timed, as with ladder.
    Without an OPERATION, one that fails is reported, and the others are still shown.

    Exit code 0: done, and every kernel agrees with the reference.
    Exit code 1: one does not; it is not timed.
    Exit code 2: bad usage or bad input, or an operation failed.

    \b
    Examples:
      sparsenn kernels roofline
      sparsenn kernels roofline conv2d --device cuda --plot roofline.png
      sparsenn kernels roofline conv2d --rows 16 --sizes height=224,width=224
      sparsenn kernels roofline mlp --rows 100000 --json -
      sparsenn kernels roofline --measure
    """
    named = dataset if operation is not None or Path(dataset).exists() else None  # else reported with its ladder
    check_files({"--dataset": named}, {"--json": json, "--plot": plot})
    with reporting(progress):  # importing takes a second, too
        from sparsenn.backends import backend_for
        from sparsenn.report import to_json
        from sparsenn.report.roofline import draw_roofline, roofline_record, roofline_table, roofs_record, roofs_table
        from sparsenn.studies.roofline import roofline as beside_roofs
        from sparsenn.studies.run import run_ladder

    backend = backend_for(device)
    chosen = _ladders(operation, backend)
    if operation is None:
        refuse_sizes(context)
    else:
        refuse_unused(context, chosen[0])
    source = ProblemOptions(dataset, neurons, layers, rows, widths, seed, sizes, FIRST_ROWS, FIRST_LAYERS)
    measured = known_roofs(backend, progress, anew=measure)
    screen = console(sys.stderr if json == STDOUT else sys.stdout)
    screen.print(roofs_table(measured))
    results, origins, failed = [], [], {}
    with reporting(progress) as report:
        for ladder in chosen:
            try:
                problem, origin = source.problem(ladder, report)
                timed = run_ladder(
                    ladder.operation, *problem, device=device, runs=runs, roofs=measured.roofs, progress=report
                )
            except SparseNNError as error:
                if operation is not None:
                    raise
                failed[ladder.operation] = str(error)
                print(f"error: {ladder.operation}: {printable(str(error))}", file=sys.stderr, flush=True)
                continue
            results.append(beside_roofs(timed, problem, backend.device, measured.roofs))
            origins.append(origin)
            screen.print()
            screen.print(roofline_table(results[-1]))
    if json is not None:
        records = [origin | roofline_record(result) for origin, result in zip(origins, results, strict=True)]
        write_document(json, to_json({"ceilings": roofs_record(measured), "ladders": records, "failed": failed}))
    if plot is not None:
        with drawing(plot):
            draw_roofline(results, measured.roofs, measured.identity.device, plot)
    if failed:
        raise typer.Exit(ExitCode.BAD_INPUT)
    if not all(result.ladder.correct for result in results):
        raise typer.Exit(ExitCode.VERIFICATION_FAILED)


def _ladders(operation: str | None, backend: Backend) -> list[Ladder]:
    from sparsenn.studies.ladder import ladder_for, ladders, rungs_of

    if operation is not None:
        rungs_of(operation, backend.device)
        return [ladder_for(operation)]
    found = []
    for name in ladders():
        try:
            rungs_of(name, backend.device)
        except UsageError:
            continue
        found.append(ladder_for(name))
    return found
