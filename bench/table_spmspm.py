"""The ladder of spmspm: every rung, or a sweep, on the official 1024 × 120 network with its first images."""

from __future__ import annotations

import argparse
from pathlib import Path

from record import Row, Run, Table, WrongAnswerError, count

from sparsenn.backends import backend_for
from sparsenn.io import read_official
from sparsenn.report.ladder import draw_ladder
from sparsenn.studies.measure import meter_for
from sparsenn.studies.run import run_ladder


def spmspm_rows(cell: str, run: Run) -> list[Row]:
    """Run the ladder, or a sweep of what can be varied, on the official network; return a row for each rung.

    Raises
    ------
    WrongAnswerError
        A rung does not agree with the reference.
    """
    options = run.options
    dataset = read_official(options.folder, layers=options.layers, limit_inputs=options.inputs)
    roofs = meter_for(backend_for(options.device)).roofs()
    settings = {"device": options.device, "runs": options.runs, "sweep": run.name == "spmspm-sweep", "roofs": roofs}
    result = run_ladder("spmspm", dataset.network, dataset.inputs, **settings)
    if not result.correct:
        wrong = ", ".join(rung.name for rung in result.rungs if not rung.correct)
        raise WrongAnswerError(f"these rungs do not agree with the reference: {wrong}")
    if options.plot:
        draw_ladder(result, options.plot)
    run.shared["result"] = result
    run.notes.append(f"Floor: {1e3 * result.floor_seconds:.3g} ms, from measured copy bandwidth and multiply-add rate.")
    return [
        {
            "key": rung.name,
            "kernel": rung.name,
            "milliseconds": 1e3 * rung.seconds,
            "spread_milliseconds": 1e3 * rung.spread,
            "layer_milliseconds": 1e3 * rung.seconds / result.stages,
            "kernel_milliseconds": None if rung.kernel_seconds is None else 1e3 * rung.kernel_seconds,
            "speedup": result.speedup(rung),
            "floor_share": result.floor_share(rung),
            "registers": rung.registers,
            "shared_bytes": rung.shared_bytes,
            "error": rung.error,
            "layer_seconds": rung.stage_seconds,
        }
        for rung in result.rungs
    ]


def spmspm_configuration(run: Run) -> Row:
    result = run.shared["result"]
    return {
        "rows": result.rows,
        "layers": result.stages,
        "runs": result.runs,
        "bytes": result.bytes,
        "multiply_adds": result.multiply_adds,
        "copy_bytes_per_second": result.roofs.copy_bandwidth,
        "multiply_adds_per_second": result.roofs.multiply_adds["float32"],
        "floor_seconds": result.floor_seconds,
    }


def spmspm_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, help="the network, images and categories in the official layout")
    parser.add_argument("--inputs", type=count, default=1200)
    parser.add_argument("--layers", type=count, default=120)
    parser.add_argument("--runs", type=count, default=20)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--plot", type=Path, help="draw the ladder, too")


SPMSPM = Table(
    title=lambda options, rows: (
        f"spmspm on {options.device}: 1024 × {options.layers}, {options.inputs:,} inputs, every row computed"
    ),
    columns=[
        ("kernel", "kernel"),
        ("milliseconds", "all layers (ms)", "{:,.2f}"),
        ("spread_milliseconds", "spread (ms)", "{:.2f}"),
        ("layer_milliseconds", "a layer (ms)", "{:.4f}"),
        ("kernel_milliseconds", "in kernel (ms)", "{:,.2f}"),
        ("speedup", "speed-up", "{:.2f}"),
        ("floor_share", "% of roofline", "{:.2%}"),
        ("registers", "registers"),
        ("shared_bytes", "shared memory (bytes)", "{:,}"),
        ("error", "largest error", "{:.1e}"),
    ],
    cells=lambda options: ["spmspm"],
    measure=spmspm_rows,
    notes=lambda options, rows: [
        "Each rung is checked against the float64 reference in every layer, then timed. Medians and interquartile "
        f"ranges of {options.runs} runs, the conversion to CSR included; in kernel: the product alone."
    ],
    options=spmspm_options,
    configuration=spmspm_configuration,
)

TABLES = {"spmspm-ladder": SPMSPM, "spmspm-sweep": SPMSPM}
