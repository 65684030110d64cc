"""The study of training, from a thread an element to an epoch in one launch."""

from sparsenn.backends.registry import register
from sparsenn.studies.train import host, ladder, layered, persistent

__all__ = ["ladder"]

for _kernel in (*layered.KERNELS, persistent.PERSISTENT, host.NUMBA):
    register(_kernel)
