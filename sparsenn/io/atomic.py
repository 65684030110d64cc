"""Writing files whole or not at all, for every format."""

from __future__ import annotations

from sparsenn.storage.atomic import adding_to, open_to_write, replacing

__all__ = ["adding_to", "open_to_write", "replacing"]
