"""A problem of the Sparse DNN Graph Challenge: generated, run, and its categories held against the true ones.

    python examples/challenge.py                    # a small one: 120 layers of 1,024 neurons, 2,000 samples
    python examples/challenge.py radixnet-4096x120  # one of the twelve, all 60,000 samples; kept on disk for next time

From the command line the same is `sparsenn infer radixnet-4096x120 --stats`.
"""

import sys

import numpy as np

import sparsenn
from sparsenn.datasets import generate

dataset = sparsenn.load(sys.argv[1]) if sys.argv[1:] else generate(1024, 120, images=2000, inputs="digits")
session = sparsenn.Session(dataset.network)  # device="cuda" where there is a GPU
result = session.run(dataset.inputs)  # like session(rows), but it counts and times, too

print(result.plan)
first, last = result.statistics[0], result.statistics[-1]
print(
    f"samples that are not all zero: {first.active_rows:,} after the first layer, {last.active_rows:,} after the last"
)
print(f"{result.edges:,} edges x {result.inputs:,} samples: {result.edges_per_second / 1e9:.1f} GigaEdges/s")
if dataset.truth is not None:  # what the network gives in exact arithmetic
    correct = np.array_equal(result.categories, dataset.truth)
    print(f"categories: {len(result.categories):,}, {'all correct' if correct else 'NOT the true ones'}")
