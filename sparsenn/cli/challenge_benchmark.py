"""`sparsenn challenge benchmark`: the challenge's rates of some problems, cold and warm, savings on and off."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from sparsenn.cli import options
from sparsenn.cli.console import console, reporting
from sparsenn.cli.exits import ExitCode
from sparsenn.cli.files import STDOUT, check_files, write_document
from sparsenn.errors import SparseNNError, UsageError
from sparsenn.printable import printable


def benchmark(
    datasets: Annotated[
        list[str] | None, typer.Argument(metavar="DATASET...", help="Datasets, as for run.", show_default=False)
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="The twelve official networks, generated where they are not in the cache.")
    ] = False,
    runs: Annotated[int, typer.Option(metavar="R", min=1, help="Warm runs of each session.")] = 20,
    limit_inputs: options.LimitInputs = None,
    device: options.Device = "auto",
    kernel: options.Kernel = "auto",
    precision: options.Precision = "auto",
    memory_limit: options.MemoryLimit = None,
    verify: Annotated[
        bool, typer.Option("--verify/--no-verify", help="Compare with the truth, which may have to be computed first.")
    ] = True,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="The table for a submission: .md, .tex or .csv."),
    ] = None,
    json: options.Json = None,
    progress: options.ProgressFlag = None,
) -> None:
    """Measure the challenge's rates: a first, cold run and warm ones apart, with the savings of work and without.

    Problems that are generated stay in the cache, and an interrupted computation of a truth resumes; neither is in a
    rate. Table and JSON are written after each problem.

    Exit code 0: done, and verified where the true categories are known. 1: verification failed. 2: a problem failed.

    \b
    Examples:
      sparsenn challenge benchmark radixnet-1024x120 --runs 20
      sparsenn challenge benchmark --all --device cuda --output rates.tex --json rates.json
      sparsenn challenge benchmark problem.h5 --no-verify
    """
    if bool(datasets) == every:
        raise UsageError("name datasets, or take all twelve official ones (--all)")
    check_files(
        {f"DATASET {name}": name for name in datasets or ()},
        {"--output": output, "--json": json},
        (".md", ".tex", ".csv"),
    )
    limit = options.byte_count("--memory-limit", memory_limit)
    with reporting(progress):  # importing takes a second, too
        from sparsenn.datasets import NAMES, load
        from sparsenn.report import to_json
        from sparsenn.report.challenge import challenge_document, challenge_record, challenge_table
        from sparsenn.studies.challenge import run_challenge

    results, failed = [], False
    for name in NAMES if every else datasets or ():
        try:
            with reporting(progress) as report:
                dataset = load(name, limit_inputs=limit_inputs, truth=verify, progress=report)
                result = run_challenge(
                    dataset,
                    runs,
                    verify=verify,
                    progress=report,
                    device=device,
                    kernel=kernel,
                    precision=precision,
                    memory_limit=limit,
                )
        except SparseNNError as error:
            if not every:
                raise
            failed = True
            print(f"error: {name}: {printable(str(error))}", file=sys.stderr, flush=True)
            continue
        results.append(result)
        if output is not None:
            write_document(output, challenge_document(results, output.suffix.lower()))
        if json is not None and json != STDOUT:
            write_document(json, to_json(challenge_record(results)))
    if results:
        console(sys.stderr if json == STDOUT else sys.stdout).print(challenge_table(results))
    if json == STDOUT:
        write_document(json, to_json(challenge_record(results)))
    if failed:
        raise typer.Exit(ExitCode.BAD_INPUT)
    if any(run.verified is False for result in results for run in result.runs):
        raise typer.Exit(ExitCode.VERIFICATION_FAILED)
