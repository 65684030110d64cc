"""PyTorch's work on a GPU as one CUDA graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["graph_of"]

WARM_UP = 3


def graph_of(run: Callable[[], torch.Tensor]) -> tuple[Callable[[], Any], torch.Tensor]:
    """Return the replay of what a function queues, captured after a few calls, and its outputs."""
    with torch.no_grad():
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(WARM_UP):
                run()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outputs = run()
    return graph.replay, outputs
