"""The study of training, from a thread an element to an epoch in one launch."""

from sparsenn.backends.registry import register
from sparsenn.studies.ladder import register_ladder
from sparsenn.studies.train import host, layered, persistent
from sparsenn.studies.train.ladder import LADDER

__all__ = ["LADDER"]

for _rung in (*layered.KERNELS, persistent.PERSISTENT, host.NUMBA):
    register(_rung)
register_ladder(LADDER)
