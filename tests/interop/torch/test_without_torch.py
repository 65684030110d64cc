"""What asks for PyTorch says so where it is missing."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import sparsenn
from sparsenn.errors import UsageError
from sparsenn.layers import Linear
from sparsenn.network import Network


def test_modules_are_neither_made_nor_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "sparsenn.interop.torch.module", raising=False)
    with pytest.raises(UsageError, match="needs PyTorch"):
        sparsenn.torch.wrap(Network((Linear(np.ones((2, 2))),)))
    with pytest.raises(UsageError, match=r"PyTorch.* not installed"):
        sparsenn.from_torch(3)
