"""Record blocks of transformers whose pruned modules sessions compute, beside the same in PyTorch.

Usage: python bench/record_sparsify.py [--seconds S] [--machine NAME] [--device cuda]

A block each of ViT-B/16, BERT-base and a decoder of 1 billion parameters, with random weights, of which 20 or 50 %
are left. All modules are replaced, whether faster or not; both take the same tokens in turns, and outputs are compared
first. Writes bench/results/<machine>/sparsify.json, the slowest first. The exit code is 1 if outputs differ.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from results_file import results_path, write_results
from torch import nn
from wall_timing import timed_in_turn

import sparsenn

DENSITIES = (0.2, 0.5)
TOKENS = (1, 16, 128)
MOST_RUNS = 500
LEAST_RUNS = 9
TOLERANCE = 1e-4
"""The largest difference of two outputs, in parts of the largest output, or of 1."""


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


def recorded(title: str, sizes: Sizes, density: float, device: str, seconds: float) -> list[dict[str, Any]]:
    """Time a block; return a row for each number of tokens, `difference` in parts of the largest output."""
    torch.manual_seed(0)
    block = Block(sizes, title == "BERT-base", density).eval().to(device)
    sparse = sparsenn.torch.sparsify(block, 1.0, inplace=False)
    found = []
    with torch.inference_mode():
        for count in TOKENS:
            tokens = torch.randn(1, count, sizes.width, device=device)
            calls: list[Callable[[], Any]] = [partial(sparse, tokens), partial(block, tokens)]
            own, expected = (call() for call in calls)
            difference = float((own - expected).abs().max() / max(1.0, float(expected.abs().max())))
            start = time.perf_counter()
            for call in calls:
                call()
            runs = int(seconds / (time.perf_counter() - start))
            wait = torch.cuda.synchronize if device == "cuda" else lambda: None
            ours, by_torch = timed_in_turn(calls, wait, runs=max(LEAST_RUNS, min(MOST_RUNS, runs)))
            found.append(
                {
                    "key": f"{title}-{density:g}-{count}",
                    "block": title,
                    "density": density,
                    "tokens": count,
                    "milliseconds": ours.median,
                    "torch": by_torch.median,
                    "times": by_torch.median / ours.median,
                    "difference": difference,
                }
            )
            print(f"{found[-1]['key']}: {found[-1]['times']:.2f} times as fast", file=sys.stderr)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(description="Record blocks of transformers beside PyTorch.")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each block, density and number of tokens")
    parser.add_argument("--machine", help="name of the folder of results; made of CPU and GPU unless given")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args(arguments)
    rows = [
        row
        for title, sizes in BLOCKS.items()
        for density in DENSITIES
        for row in recorded(title, sizes, density, options.device, options.seconds)
    ]
    rows.sort(key=lambda row: row["times"])
    write_results(
        results_path("sparsify", folder=options.machine),
        table="sparsify",
        title=f"Blocks of transformers with `sparsify`: at least {rows[0]['times']:.2f} times as fast as PyTorch",
        columns=[
            ("block", "block"),
            ("density", "density", "{:.0%}"),
            ("tokens", "tokens"),
            ("milliseconds", "sparsenn (ms)", "{:.3f}"),
            ("torch", "PyTorch (ms)", "{:.3f}"),
            ("times", "× PyTorch", "{:.2f}"),
        ],
        rows=rows,
        configuration={"tokens": list(TOKENS), "seconds": options.seconds, "device": options.device},
        notes=[
            "Medians of warm calls in turns under `torch.inference_mode()`, tokens and outputs on the device, each "
            "library with its own number of threads. Outputs were compared first. All fully connected layers of a "
            "block have this density, weights at random places.",
        ],
    )
    wrong = [row for row in rows if not row["difference"] <= TOLERANCE]
    for row in wrong:
        print(f"record_sparsify: {row['key']}: outputs differ by {row['difference']:.1e}", file=sys.stderr)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
