"""A pruned ONNX model, and a CSV file of samples, one a line: a CSV file of predictions, one a line.

    python examples/onnx_model.py MODEL.onnx ROWS.csv PREDICTIONS.csv
    python examples/onnx_model.py                                      # makes a model and samples here first

From the command line the same is
`sparsenn predict MODEL.onnx ROWS.csv --output PREDICTIONS.csv`.
"""

import importlib.util
import sys

import numpy as np

import sparsenn


def make_model(path):
    """Write a perceptron, 100 → 512 → 512 → 3, of whose weights one in fifty is left; yours comes from elsewhere."""
    rng = np.random.default_rng(0)
    shapes = (100, 512), (512, 512), (512, 3)
    weights = [rng.normal(size=shape) * (rng.random(shape) < 0.02) for shape in shapes]
    activations = [sparsenn.ReLU(), sparsenn.ReLU(), sparsenn.Identity()]
    sparsenn.to_onnx(sparsenn.Network.from_scipy(weights, activation=activations), path)


model, source, target = sys.argv[1:] or ("example.onnx", "example-rows.csv", "example-predictions.csv")
if not sys.argv[1:]:
    make_model(model)
    np.savetxt(source, np.random.default_rng(1).normal(size=(1000, 100)), delimiter=",", fmt="%.6f")

session = sparsenn.Session(sparsenn.from_onnx(model))
rows = np.loadtxt(source, np.float32, delimiter=",", ndmin=2)
print(session.plan(rows))  # which kernels run it, and why
outputs = session(rows)
classes = outputs.argmax(axis=1)
np.savetxt(target, classes, fmt="%d")
print(f"{target}: {len(classes):,} predictions; samples of each class: {np.bincount(classes).tolist()}")

if importlib.util.find_spec("onnxruntime") is not None:
    import onnxruntime

    other = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    expected = other.run(None, {other.get_inputs()[0].name: rows})[0]
    same = bool((expected.argmax(axis=1) == classes).all())
    print(f"beside ONNX Runtime: same predictions: {same}; largest difference {abs(outputs - expected).max():.1e}")
