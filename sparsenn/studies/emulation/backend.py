"""The device `emulated` of ladders."""

from __future__ import annotations

from typing import cast

from sparsenn.backends import Backend, backend_for
from sparsenn.backends.cpu import CPUBackend

EMULATED = "emulated"


class EmulatedBackend(CPUBackend):
    """The host, in whose memory emulated kernels run."""

    device = EMULATED

    @property
    def description(self) -> str:
        """The device in words."""
        return "an emulated GPU"


def ladder_backend(device: str) -> Backend:
    """Return the backend for a device of ladders: `emulated`, or one that `backend_for` takes; errors are its own."""
    return cast(Backend, EmulatedBackend()) if device == EMULATED else backend_for(device)
