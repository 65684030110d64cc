"""A pruned PyTorch model, run by sparsenn: the same predictions, in less time.

    python examples/pruned_torch.py

Needs PyTorch. The model here has 1 % of its weights left and is not trained; put yours in its place.
"""

import importlib.util
import sys
import time

import sparsenn

if importlib.util.find_spec("torch") is None:
    sys.exit("This example needs PyTorch, which is not installed here: https://pytorch.org/get-started")

import torch
from torch.nn.utils import prune


def milliseconds(call, runs=30):
    """Return the time of the fastest of some calls."""
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return 1000 * min(times)


torch.manual_seed(0)
model = torch.nn.Sequential(
    *(torch.nn.Linear(784, 2048), torch.nn.ReLU()),
    *(torch.nn.Linear(2048, 2048), torch.nn.ReLU()),
    torch.nn.Linear(2048, 10),
).eval()
for layer in (model[0], model[2], model[4]):
    prune.l1_unstructured(layer, "weight", amount=0.99)

network = sparsenn.from_torch(model)  # masks are applied; layers with few weights left become sparse
session = sparsenn.Session(network, device="cpu")  # device="cuda" where there is a GPU
rows = torch.rand(256, 784)
print(session.plan(rows))  # which kernels run it, and why

with torch.inference_mode():
    expected = model(rows)
    ours = session(rows)  # a tensor, where the rows are
    print(f"largest difference: {(ours - expected).abs().max():.1e}")
    print(f"same predictions: {bool((ours.argmax(1) == expected.argmax(1)).all())}")
    print(f"PyTorch:  {milliseconds(lambda: model(rows)):6.2f} ms for {len(rows)} rows")
    print(f"sparsenn: {milliseconds(lambda: session(rows)):6.2f} ms")
