"""One stack, several threads: what launches keep between them is each thread's own."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
from sparse_layers import sparse_layer

from sparsenn.backends import backend_for
from sparsenn.backends.chains import SparseProblem
from sparsenn.backends.cpu.panel import PANEL
from sparsenn.backends.cpu.row_by_row import ROWS
from sparsenn.backends.stepwise import Stepwise


def test_chains_of_one_stack_in_many_threads(rng):
    backend = backend_for("cpu")
    layers = [sparse_layer(rng.normal(size=(60, 60)) / 8, 0.1)] * 8
    stack = backend.prepare(layers, [np.ones(60, np.int64)] * 8)
    problem, wrong = SparseProblem(300, "dense", 8, True), []

    def run(seed):
        rows = np.random.default_rng(seed).normal(size=(300, 60)).astype(np.float32)
        expected = ROWS.prepare(stack, problem).run(rows, False).features
        chains = Stepwise(backend, PANEL, stack, layers, problem), ROWS.prepare(stack, problem)
        for _ in range(20):
            for chain in chains:
                left = chain.run(rows, True)
                found = left.row_map.scatter(left.features)
                if not np.array_equal(found, expected):
                    wrong.append(seed)

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(run, range(6)))
    assert wrong == []
