"""Networks of the kinds that people prune: what PyTorch and ONNX Runtime compute, sessions compute."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

torch = pytest.importorskip("torch", reason="exports the networks")
onnxruntime = pytest.importorskip("onnxruntime", reason="computes what no layer does")
from golden_networks import NETWORKS, Golden  # noqa: E402

from sparsenn import Session, from_onnx  # noqa: E402

TOLERANCE = 1e-4


def as_arrays(outputs: Any) -> list[np.ndarray]:
    if isinstance(outputs, dict):
        outputs = list(outputs.values())
    return [np.asarray(each) for each in (outputs if isinstance(outputs, list | tuple) else [outputs])]


def is_close(found: np.ndarray, expected: np.ndarray) -> bool:
    flat = expected.reshape(len(expected), -1)
    return bool(np.abs(found.reshape(flat.shape) - flat).max() <= TOLERANCE * max(1.0, np.abs(flat).max()))


@pytest.mark.parametrize("golden", NETWORKS.values(), ids=NETWORKS)
def test_outputs_are_those_of_pytorch_and_onnx_runtime(golden: Golden) -> None:
    module = golden.module()
    file = golden.onnx(module)
    runtime = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    with Session(from_onnx(onnx.load_from_string(file)), device="cpu") as session:
        for count in (1, 7, 64):
            rows = golden.rows(count)
            found = as_arrays(session(rows if len(rows) > 1 else next(iter(rows.values()))))
            with torch.no_grad():
                computed = as_arrays(module(*map(torch.from_numpy, rows.values())))
            assert len(found) == len(computed) == len(golden.outputs)
            for own, by_torch, by_runtime in zip(found, computed, runtime.run(None, rows), strict=True):
                assert is_close(own, by_torch)
                assert is_close(own, by_runtime)
