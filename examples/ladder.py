"""What each kernel for sparse layers takes for one small problem, slowest first, and that all give the same answer.

    python examples/ladder.py [cpu|cuda]

`sparsenn kernels ladder spmspm` does it with more care: medians, spreads, and the limits of the machine.
"""

import sys
import time

import numpy as np

import sparsenn
from sparsenn.datasets import generate

device = sys.argv[1] if sys.argv[1:] else "cpu"
dataset = generate(1024, 6, images=500, inputs="digits")
expected = sparsenn.infer(dataset.network, dataset.inputs, device="reference").dense  # in float64, by the book

found = []
for kernel in sparsenn.kernels("spmspm", device):
    with sparsenn.Session(dataset.network, device=device, kernel=kernel.name) as session:
        outputs = session.run(dataset.inputs).dense  # compiles what is needed
        np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-5)
        start = time.perf_counter()
        session.run(dataset.inputs)
        found.append((time.perf_counter() - start, kernel))

slowest = max(seconds for seconds, _ in found)
for seconds, kernel in sorted(found, key=lambda pair: -pair[0]):
    print(f"{kernel.name:>20} {1000 * seconds:8.2f} ms {slowest / seconds:6.1f} x  {kernel.summary}")
print(f"{len(found)} kernels, one answer: that of float64, within float32's rounding")
