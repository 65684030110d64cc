"""The study of convolutions: two stories of how one is made fast, told rung by rung. Importing this registers them."""

from sparsenn.backends.registry import register
from sparsenn.studies.conv2d.ladder import LADDER
from sparsenn.studies.ladder import register_ladder

__all__ = ["LADDER"]

for _rungs in LADDER.rungs.values():
    for _rung in _rungs:
        if not _rung.auto:  # those that `auto` may take are the engine's own
            register(_rung)
register_ladder(LADDER)
