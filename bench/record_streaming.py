"""Record what it costs to stream weights through the device instead of keeping them there.

A network of random layers is run three times over: with all weights prepared at once, with weights that may take only
a part of the memory, and the same without preparing a part while the last one is computed. Outputs are compared bit
for bit.

Usage: python bench/record_streaming.py [--width N] [--layers L] [--rows R] [--parts P] [--machine NAME]. Writes
bench/results/<machine>/streaming.json.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
from results_file import results_path, write_results

from sparsenn import CSC, CSR, Network, ReLU, Session, SparseLinear
from sparsenn.backends.cuda import CUDABackend
from sparsenn.engine import Result

RUNS = 7
DEGREE = 32


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=16384)
    parser.add_argument("--layers", type=int, default=96)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--parts", type=int, default=12)
    parser.add_argument("--machine", help="name of the folder of results; made of CPU and GPU unless given")
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    network = Network(tuple(random_layer(rng, options.width) for _ in range(options.layers)))
    inputs = random_inputs(rng, options.rows, options.width)
    prepared = sum(CUDABackend().prepared_bytes(layer) for layer in network)
    rows, first = [], None
    for name, memory, ahead in (
        ("all at once", None, True),
        ("in parts, the next meanwhile", 2 * prepared // options.parts, True),
        ("in parts, one after the other", prepared // options.parts, False),
    ):
        result, seconds = timed(network, inputs, memory, ahead)
        if first is None:
            first = result.outputs.values.tobytes()
        elif result.outputs.values.tobytes() != first:
            raise SystemExit(f"{name}: the outputs differ")
        quartiles = statistics.quantiles(seconds, n=4)
        rows.append(
            {
                "way": name,
                "parts": len(result.plan.steps),
                "seconds": statistics.median(seconds),
                "spread": quartiles[2] - quartiles[0],
                "prepare": result.seconds.prepare,
                "compute": result.seconds.compute,
            }
        )
        print(rows[-1], flush=True)
    path = results_path("streaming", folder=options.machine)
    write_results(
        path,
        table="streaming",
        title=f"Weights streamed through the device: {options.layers} layers of {options.width:,} neurons",
        columns=[
            ("way", "weights prepared"),
            ("parts", "parts"),
            ("seconds", "from inputs on the host to categories there (s)", "{:.3f}"),
            ("spread", "spread (s)", "{:.3f}"),
            ("prepare", "waited for weights (s)", "{:.3f}"),
            ("compute", "computed (s)", "{:.3f}"),
        ],
        rows=rows,
        configuration={**vars(options), "degree": DEGREE, "prepared_bytes": prepared, "runs": RUNS, "kernel": "chunks"},
        notes=[
            f"{options.rows:,} random inputs, {DEGREE} random weights an output, kernel `chunks`; prepared, they take "
            f"{prepared / 1e9:.1f} GB. Medians of {RUNS} calls of a session after one, which brings to the device what "
            "stays there; waiting and computing are the last call's. "
            "Outputs are the same bits all three ways."
        ],
    )


def random_layer(rng: np.random.Generator, width: int) -> SparseLinear:
    """Return a layer whose outputs stay about as large as its inputs, and of which few rows become zero."""
    step = width // DEGREE
    indices = np.arange(DEGREE) * step + rng.integers(0, step, (width, DEGREE))
    weights = rng.normal(0.02, 0.25, width * DEGREE).astype(np.float32)
    indptr = np.arange(width + 1, dtype=np.int64) * DEGREE
    return SparseLinear(CSC((width, width), indptr, indices.ravel().astype(np.uint16), weights), 0.01, ReLU(32.0))


def random_inputs(rng: np.random.Generator, rows: int, width: int) -> CSR:
    """Return rows of which a tenth is not zero."""
    per_row = width // 10
    indices = np.sort(rng.integers(0, 10, (rows, per_row)) + 10 * np.arange(per_row), axis=1)
    values = rng.random(rows * per_row, dtype=np.float32) + 0.5
    return CSR((rows, width), np.arange(rows + 1, dtype=np.int64) * per_row, indices.ravel().astype(np.uint16), values)


def timed(network: Network, inputs: CSR, memory: int | None, ahead: bool) -> tuple[Result, list[float]]:
    """Call a session; return the last result, and the seconds of each call but the first."""
    seconds = []
    with Session(network, device="cuda", kernel="chunks", weight_memory=memory, merging=False) as session:
        session.backend.prepares_ahead = ahead
        for _ in range(RUNS + 1):
            start = time.perf_counter()
            result = session.run(inputs)
            seconds.append(time.perf_counter() - start)
    return result, seconds[1:]


if __name__ == "__main__":
    main()
