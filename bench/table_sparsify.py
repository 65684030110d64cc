"""Blocks of transformers whose pruned modules sessions compute, beside the same in PyTorch.

A block each of ViT-B/16, BERT-base and a decoder of 1 billion parameters, with random weights. All modules are
replaced, and leave to PyTorch the calls that it computes faster; both blocks take the same tokens in turns, and outputs
are compared first.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch
from record import Case, Row, Run, Table, WrongAnswerError
from timing import no_wait
from torch import nn

import sparsenn

MOST_RUNS, LEAST_RUNS = 500, 9
TOLERANCE = 1e-4
"""The largest difference of two outputs, as a share of the largest output, or of 1."""


@dataclass(frozen=True)
class Sizes:
    """A block's numbers: those of a token, of the hidden layer, and heads; and whether a second layer gates that."""

    width: int
    hidden: int
    heads: int
    gated: bool = False


BLOCKS = {
    "ViT-B/16": Sizes(768, 3072, 12),
    "BERT-base": Sizes(768, 3072, 12),
    "decoder, 1 B": Sizes(2048, 5632, 32, gated=True),
}


class Block(nn.Module):
    """Attention and two layers, each with a sum around it; of BERT, normalisations come after the sums."""

    def __init__(self, sizes: Sizes, is_last: bool, density: float) -> None:
        super().__init__()
        width, hidden = sizes.width, sizes.hidden
        self.heads, self.is_last = sizes.heads, is_last
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.gate = nn.Linear(width, hidden) if sizes.gated else None
        for module in self.modules():
            if isinstance(module, nn.Linear):
                module.weight.data *= torch.rand_like(module.weight) < density

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return (rows, tokens, width) of the same."""
        first, second = self.norms
        if self.is_last:
            tokens = first(tokens + self._attention(tokens))
            return second(tokens + self._layers(tokens))  # type: ignore[no-any-return]
        tokens = tokens + self._attention(first(tokens))
        return tokens + self._layers(second(tokens))

    def _attention(self, tokens: torch.Tensor) -> Any:
        layers = self.query, self.key, self.value
        heads = (layer(tokens).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in layers)
        mixed = nn.functional.scaled_dot_product_attention(*heads, is_causal=self.gate is not None)
        return self.out(mixed.transpose(1, 2).flatten(2))

    def _layers(self, tokens: torch.Tensor) -> Any:
        if self.gate is not None:
            return self.down(nn.functional.silu(self.gate(tokens)) * self.up(tokens))
        return self.down(nn.functional.gelu(self.up(tokens)))


@lru_cache(maxsize=1)
def modules(name: str, density: float, device: str) -> tuple[nn.Module, nn.Module]:
    """Return a block, and the same whose modules sessions compute."""
    torch.manual_seed(0)
    block = Block(BLOCKS[name], name == "BERT-base", density).eval().to(device)
    return block, sparsenn.torch.sparsify(block, 1.0, inplace=False)


def block_row(name: str, density: float, count: int, run: Run) -> Row:
    """Compare a block with PyTorch's, and time both in turns.

    Raises
    ------
    WrongAnswerError
        The outputs differ.
    """
    device = run.options.device
    block, sparse = modules(name, density, device)
    with torch.inference_mode():
        tokens = torch.randn(1, count, BLOCKS[name].width, device=device)
        calls = [partial(sparse, tokens), partial(block, tokens)]
        own, expected = (call() for call in calls)
        difference = float((own - expected).abs().max() / max(1.0, float(expected.abs().max())))
        if not difference <= TOLERANCE:
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


def cases(options: argparse.Namespace) -> Iterator[Case]:
    for name, density, tokens in itertools.product(BLOCKS, (0.2, 0.5), options.tokens):
        columns = {"block": name, "density": density, "tokens": tokens}
        yield Case(f"{name}-{density:g}-{tokens}", columns, partial(block_row, name, density, tokens))


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
            ("milliseconds", "sparsenn (ms)", "{:.3f}"),
            ("torch", "PyTorch (ms)", "{:.3f}"),
            ("times", "× PyTorch", "{:.2f}"),
        ],
        cases=cases,
        notes=[
            "Medians of warm calls, alternately, under `torch.inference_mode()`, tokens and outputs on the device, "
            "each library with its own number of threads. Outputs were compared first. All fully connected layers of a "
            "block have this density, weights at random places.",
        ],
        options={"seconds": 2.0, "tokens": [1, 16, 128]},
        order=lambda row: row["times"],
        device="cpu",
    )
}
