"""Record the ladder of spmspm: every rung on the official 1024 x 120 network with its first images.

Usage: python bench/record_ladder.py FOLDER [--inputs K] [--layers L] [--runs R] [--device cuda] [--machine NAME]
                                            [--sweep] [--plot FILE]

FOLDER holds the network in the official layout, with images and categories. Writes
bench/results/<machine>/spmspm-ladder.json, or spmspm-sweep.json with --sweep; the exit code is 1, and nothing is
written, if a rung does not agree with the reference.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from results_file import Column, results_path, write_results

from sparsenn.backends import backend_for
from sparsenn.io import read_official
from sparsenn.report.ladder import draw_ladder
from sparsenn.studies.measure import meter_for
from sparsenn.studies.run import LadderResult, run_ladder

COLUMNS = (
    Column("kernel", "kernel"),
    Column("milliseconds", "all layers (ms)", "{:,.2f}"),
    Column("spread_milliseconds", "spread (ms)", "{:.2f}"),
    Column("layer_milliseconds", "a layer (ms)", "{:.4f}"),
    Column("kernel_milliseconds", "in kernel (ms)", "{:,.2f}"),
    Column("speedup", "speed-up", "{:.2f}"),
    Column("floor_share", "% of roofline", "{:.2%}"),
    Column("registers", "registers"),
    Column("shared_bytes", "shared memory (bytes)", "{:,}"),
    Column("error", "largest error", "{:.1e}"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(description="Record the ladder of spmspm.")
    parser.add_argument("folder", type=Path, help="the network, images and categories in the official layout")
    parser.add_argument("--inputs", type=int, default=1200)
    parser.add_argument("--layers", type=int, default=120)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--machine", help="name of the folder of results; made of CPU and GPU unless given")
    parser.add_argument("--sweep", action="store_true", help="vary what can be varied instead of running all rungs")
    parser.add_argument("--plot", type=Path, help="draw the ladder, too")
    options = parser.parse_args(arguments)
    dataset = read_official(options.folder, layers=options.layers, limit_inputs=options.inputs)
    roofs = meter_for(backend_for(options.device)).roofs()
    how = {"device": options.device, "runs": options.runs, "sweep": options.sweep, "roofs": roofs}
    result = run_ladder("spmspm", dataset.network, dataset.inputs, **how)
    if not result.correct:
        wrong = ", ".join(rung.name for rung in result.rungs if not rung.correct)
        print(f"these rungs do not agree with the reference: {wrong}", file=sys.stderr)
        return 1
    path = results_path("spmspm-sweep" if options.sweep else "spmspm-ladder", folder=options.machine)
    record(path, result, dataset.network.inputs)
    if options.plot:
        draw_ladder(result, options.plot)
    print(path)
    return 0


def record(path: Path, result: LadderResult, width: int) -> None:
    """Write the result file."""
    write_results(
        path,
        table=path.stem,
        title=f"spmspm on {result.device}: {width} × {result.stages}, {result.rows:,} inputs, every row computed",
        columns=COLUMNS,
        rows=[row(result, rung) for rung in result.rungs],
        configuration={
            "rows": result.rows,
            "layers": result.stages,
            "runs": result.runs,
            "bytes": result.bytes,
            "multiply_adds": result.multiply_adds,
            "copy_bytes_per_second": result.roofs.copy_bandwidth,
            "multiply_adds_per_second": result.roofs.multiply_adds["float32"],
            "floor_seconds": result.floor_seconds,
        },
        notes=[
            "Each rung is checked against the float64 reference in every layer, then timed. Medians and interquartile "
            f"ranges of {result.runs} runs, the conversion to CSR included; in kernel: the product alone.",
            f"Floor: {1e3 * result.floor_seconds:.3g} ms, from measured copy bandwidth and multiply-add rate.",
        ],
    )


def row(result: LadderResult, rung: Any) -> dict[str, Any]:
    """Return a rung's row."""
    kernel = rung.kernel_seconds
    return {
        "kernel": rung.name,
        "milliseconds": 1e3 * rung.seconds,
        "spread_milliseconds": 1e3 * rung.spread,
        "layer_milliseconds": 1e3 * rung.seconds / result.stages,
        "kernel_milliseconds": None if kernel is None else 1e3 * kernel,
        "speedup": result.speedup(rung),
        "floor_share": result.floor_share(rung),
        "registers": rung.registers,
        "shared_bytes": rung.shared_bytes,
        "error": rung.error,
        "layer_seconds": rung.stage_seconds,
    }


if __name__ == "__main__":
    sys.exit(main())
