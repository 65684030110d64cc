"""What the trainer whose epoch is one kernel can hold."""

from dataclasses import replace

import numpy as np
import pytest
from training_problems import problem

from sparsenn.backends.machine import A100, H200, RTX_4090
from sparsenn.layers import Identity, Linear
from sparsenn.studies.train.persistent import PERSISTENT


@pytest.mark.parametrize(
    ("machine", "most"), [(H200, 2176), (A100, 1265), (RTX_4090, 355)], ids=("H200", "A100", "RTX 4090")
)
def test_layers_beyond_what_shared_memory_holds_are_refused(machine, most):
    def deep(count):
        layer = Linear(np.eye(1, dtype=np.float32), np.zeros(1), Identity())
        return replace(problem((1, 1)), layers=(layer,) * count)

    assert most == (machine.block_bytes - 75_776) // 72
    assert PERSISTENT.why_not(machine, deep(most)) is None
    reason = PERSISTENT.why_not(machine, deep(most + 1))
    assert reason == f"{most + 1:,} layers are more than the {most:,} that this kernel holds; use --kernel graph"


def test_little_shared_memory_is_told_first():
    reason = PERSISTENT.why_not(replace(H200, block_bytes=48 << 10), problem())
    assert reason == "blocks have 49,152 bytes of shared memory here, this kernel takes 75,776; use --kernel tiled"
