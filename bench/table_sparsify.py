"""Blocks of transformers whose pruned modules sessions compute, beside the same in PyTorch.

A block each of ViT-B/16, BERT-base and a decoder of 1 billion parameters, with random weights. All modules are
replaced, and on a CPU leave to PyTorch the calls that it computes faster; on a GPU, blocks are of half precision, and
called as they are and as CUDA graphs. Both blocks take the same tokens in turns, and outputs are compared first.
"""

from __future__ import annotations

import time
from functools import lru_cache, partial
from itertools import product
from typing import Any

import torch
from golden_networks import Block, pruned
from peers import torch_graph
from record import Case, Row, Run, Table, WrongAnswerError, cases_of
from timing import no_wait
from torch import nn

import sparsenn

MOST_RUNS, LEAST_RUNS = 500, 9
TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2}
"""The largest difference of two outputs, as a share of the largest output, or of 1."""

CALLS = {"cpu": ("call",), "cuda": ("call", "graph")}

BLOCKS: dict[str, dict[str, Any]] = {
    "ViT-B/16": {"width": 768, "hidden": 3072, "heads": 12},
    "BERT-base": {"width": 768, "hidden": 3072, "heads": 12, "is_last": True},
    "decoder, 1 B": {"width": 2048, "hidden": 5632, "heads": 32, "is_decoder": True},
}


TYPES = {"cpu": torch.float32, "cuda": torch.float16}


@lru_cache(maxsize=1)
def modules(name: str, density: float, device: str) -> tuple[nn.Module, nn.Module]:
    """Return a block, and the same whose modules sessions compute."""
    torch.manual_seed(0)
    block = pruned(Block(**BLOCKS[name]), density).eval().to(device, TYPES[device])
    return block, sparsenn.torch.sparsify(block, 1.0, inplace=False)


def block_row(name: str, density: float, count: int, how: str, run: Run) -> Row:
    """Compare a block with PyTorch's, and time both in turns.

    Raises
    ------
    WrongAnswerError
        The outputs differ, or a block cannot be captured.
    """
    device = run.options.device
    block, sparse = modules(name, density, device)
    with torch.inference_mode():
        tokens = torch.randn(1, count, BLOCKS[name]["width"], device=device, dtype=TYPES[device])
        calls: list[Any] = [partial(sparse, tokens), partial(block, tokens)]
        if how == "graph":
            calls = [torch_graph(call) for call in calls]
        if None in calls:
            raise WrongAnswerError(f"{run.case}: not captured")
        own, expected = (call().float() for call in calls)
        difference = float((own - expected).abs().max() / max(1.0, float(expected.abs().max())))
        if not difference <= TOLERANCE[TYPES[device]]:
            raise WrongAnswerError(f"{run.case}: outputs differ by {difference:.1e}")
        start = time.perf_counter()
        for call in calls:
            call()
        runs = int(run.options.seconds / (time.perf_counter() - start))
        wait = torch.cuda.synchronize if device == "cuda" else no_wait
        ours, by_torch = run.timer.in_turn(calls, wait, runs=max(LEAST_RUNS, min(MOST_RUNS, runs)))
    return {
        "milliseconds": ours.median,
        "torch": by_torch.median,
        "times": by_torch.median / ours.median,
        "difference": difference,
    }


def _cases(options: Any) -> list[Case]:
    cells = product(BLOCKS, (0.2, 0.5), options.tokens, CALLS[options.device])
    return cases_of(block_row, "block density tokens how", cells)


TABLES: dict[str, Any] = {
    "sparsify": Table(
        title=lambda options, rows: (
            f"Blocks of transformers with `sparsify`: at least {min(row['times'] for row in rows):.2f} times as "
            "fast as PyTorch"
        ),
        columns=[
            ("block", "block"),
            ("density", "density", "{:.0%}"),
            ("tokens", "tokens"),
            ("how", "called as"),
            ("milliseconds", "sparsenn (ms)", "{:.3f}"),
            ("torch", "PyTorch (ms)", "{:.3f}"),
            ("times", "× PyTorch", "{:.2f}"),
        ],
        cases=_cases,
        notes=[
            "Medians of warm calls, alternately, under `torch.inference_mode()`, tokens and outputs on the device, "
            "each library with its own number of threads. Outputs were compared first. All fully connected layers of a "
            "block have this density, weights at random places. On a GPU in float16, called as they are, or as one "
            "CUDA graph.",
        ],
        options={"seconds": 2.0, "tokens": [1, 16, 128]},
        order=lambda row: row["times"],
        device="cpu",
    )
}
