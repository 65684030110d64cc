"""Modules of PyTorch for tests, and what holds a network against the module that it was made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sparsenn.engine import Session
from sparsenn.io import from_torch

torch = pytest.importorskip("torch", reason="needs PyTorch")
nn = torch.nn


class Called(nn.Module):
    """A module with a forward of its own, which calls another or a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, rows: Any) -> Any:
        return self.function(rows)


def settled(module: Any) -> Any:
    """The module with normalisations that do something, in evaluation mode."""
    generator = torch.Generator().manual_seed(5)
    for part in module.modules():
        if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d):
            for each, low, high in (
                (part.running_mean, -1.0, 1.0),
                (part.running_var, 0.5, 2.0),
                (part.weight, -1.0, 1.5),
                (part.bias, -1.0, 1.0),
            ):
                if each is not None:
                    each.data.uniform_(low, high, generator=generator)
    return module.eval()


def check(module: Any, shape: tuple[int, ...], example: bool = True) -> Any:
    """Hold a network against the module that it was made of, and return it."""
    rows = torch.randn(9, *shape, generator=torch.Generator().manual_seed(6))
    network = from_torch(module, rows if example else None)
    with torch.no_grad():
        expected = module(rows).reshape(9, -1).numpy()
    found = Session(network, device="reference")(rows.reshape(9, -1).numpy())
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    return network
