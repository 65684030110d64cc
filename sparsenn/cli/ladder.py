"""`sparsenn kernels ladder`: what each optimisation of an operation buys on this machine."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from sparsenn.cli import options
from sparsenn.cli.console import console, reporting
from sparsenn.cli.exits import ExitCode
from sparsenn.cli.files import STDOUT, check_files, drawing, write_document
from sparsenn.cli.problems import FIRST_LAYERS, FIRST_ROWS, ProblemOptions, known_roofs, refuse_timing, refuse_unused

RUNS = {"cuda": 20, "cpu": 5, "reference": 1}
"""Timed runs on each kind of device unless asked for otherwise: the first kernels of a ladder take seconds on a CPU."""


def ladder(
    context: typer.Context,
    operation: Annotated[str, typer.Argument(metavar="OPERATION", help="An operation with a ladder, such as spmspm.")],
    dataset: options.LadderDataset = "radixnet-1024x120",
    neurons: options.Neurons = None,
    layers: options.Layers = None,
    rows: options.LadderRows = None,
    widths: options.Widths = None,
    sizes: options.Sizes = None,
    seed: options.Seed = 0,
    device: options.Device = "auto",
    runs: Annotated[
        int | None,
        typer.Option(
            metavar="R",
            min=1,
            help=f"Timed runs of each layer, after a checked one; by default {RUNS['cuda']} on a GPU and "
            f"{RUNS['cpu']} on a CPU.",
        ),
    ] = None,
    sweep: Annotated[
        bool, typer.Option("--sweep", help="Vary parameters, such as rows per thread, instead of running all kernels.")
    ] = False,
    plugin: Annotated[
        Path | None,
        typer.Option(metavar="FILE.py", help="Python file that adds rungs of your own; see docs/ladders.md."),
    ] = None,
    json: options.Json = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw a bar per kernel: .png, .svg or .pdf.")
    ] = None,
    progress: options.ProgressFlag = None,
) -> None:
    """Run all kernels of an operation on one problem, from the simplest to the best: each is checked, then timed.

    Sparse operations take a dataset. The others take random numbers: mlp (a stack of dense layers) and train (an epoch
    of its training) are sized by --widths; conv2d (a convolution of --rows images) and gemm (a product) by --sizes.
    The device's ceilings are measured once and cached, as with roofline.

    The device emulated runs gemm's first CUDA kernels, and your own, on the host, and checks their answers.

    Exit code 0: done, and every kernel agrees with the reference.
    Exit code 1: one does not; it is not timed.
    Exit code 2: bad usage or bad input.

    \b
    Examples:
      sparsenn kernels ladder spmspm
      sparsenn kernels ladder spmspm --json ladder.json --plot ladder.png
      sparsenn kernels ladder spmspm --device cuda --sweep --layers 4
      sparsenn kernels ladder sort --device cuda
      sparsenn kernels ladder mlp --rows 5120000 --device cuda
      sparsenn kernels ladder train --device cuda
      sparsenn kernels ladder conv2d --rows 16 --sizes height=224,width=224
      sparsenn kernels ladder gemm --sizes m=4096,n=4096 --device cuda
      sparsenn kernels ladder gemm --device emulated --plugin my.py
    """
    check_files({"--dataset": dataset, "--plugin": plugin}, {"--json": json, "--plot": plot})
    source = ProblemOptions(dataset, neurons, layers, rows, widths, seed, sizes, FIRST_ROWS, FIRST_LAYERS)
    with reporting(progress):  # what is imported takes a second, too
        from sparsenn.report import to_json
        from sparsenn.report.ladder import draw_ladder, ladder_record, ladder_table
        from sparsenn.studies.emulation import EmulatedBackend, ladder_backend
        from sparsenn.studies.ladder import ladder_for, load_rungs, rungs_of
        from sparsenn.studies.run import run_ladder

        if plugin is not None:
            load_rungs(plugin)
        chosen = ladder_for(operation)
        refuse_unused(context, chosen)
        backend = ladder_backend(device)
        is_emulated = isinstance(backend, EmulatedBackend)
        if is_emulated:
            refuse_timing(context)
            chosen = replace(chosen, sizes=chosen.emulated_sizes)
        rungs_of(operation, backend.device, sweep)  # whatever is refused is refused before anything is read
    runs = runs or RUNS.get(backend.device, 1)
    roofs = None if is_emulated else known_roofs(backend, progress).roofs
    with reporting(progress) as report:
        problem, origin = source.problem(chosen, report)
        result = run_ladder(operation, *problem, device=device, runs=runs, sweep=sweep, roofs=roofs, progress=report)
    console(sys.stderr if json == STDOUT else sys.stdout).print(ladder_table(result))
    if json is not None:
        write_document(json, to_json(origin | ladder_record(result)))
    if plot is not None:
        with drawing(plot):
            draw_ladder(result, plot)
    if not result.correct:
        raise typer.Exit(ExitCode.VERIFICATION_FAILED)
