"""A library that computes in an interpreter of its own: one is put in DeepSparse's place."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from deepsparse_peer import DeepSparse
from timing import Timer

ENGINE = """
import numpy as np

def compile_model(path, batch_size):
    assert open(path, "rb").read() == b"a network"
    print("a line that is no answer")
    return Engine(batch_size)

class Engine:
    def __init__(self, size):
        self.size = size

    def run(self, inputs):
        if not self.size:
            raise SystemExit
        return [2 * inputs[0], inputs[0][:, :1]]
"""


@pytest.fixture
def engine(tmp_path, monkeypatch):
    (tmp_path / "deepsparse.py").write_text(ENGINE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def test_outputs_and_times_come_from_the_other_process(engine):
    rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    peer = DeepSparse(sys.executable, b"a network", rows)
    first, second = peer()
    np.testing.assert_array_equal(first, 2 * rows)
    np.testing.assert_array_equal(second, rows[:, :1])
    assert len(peer.block(7)) == 7
    own, other = Timer().in_blocks([lambda: None, peer], 0.05)
    assert own.runs > 0
    assert other.median > 0


def test_a_network_that_is_not_computed_is_an_error(engine):
    peer = DeepSparse(sys.executable, b"a network", np.zeros((0, 3), np.float32))
    with pytest.raises(RuntimeError, match="DeepSparse"):
        peer()
