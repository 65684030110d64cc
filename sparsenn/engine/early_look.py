"""The early look: how many rows die, or become equal, on their way through the first sparse layers.

A kernel that drops dead rows and computes equal ones once takes far less time where there are many of them, and more
than others where there are none. Which it is depends on the network and its rows alone. So the first rows of a form are
run once through such a kernel, and what it counts decides for all that follow. That is done, too, where rows may
neither leave nor become one: whether layers are multiplied as sparse or as dense ones must not depend on that.
"""

from __future__ import annotations

import numpy as np

from sparsenn.backends import Features, SparseKernel, SparseProblem
from sparsenn.engine.choosing import Rows
from sparsenn.engine.kernels import able_sparse
from sparsenn.engine.plan import Problem
from sparsenn.engine.steps import Step
from sparsenn.engine.weights import Weights
from sparsenn.errors import UsageError
from sparsenn.formats import Array
from sparsenn.layers import SparseLinear

__all__ = ["grouping_kernel", "shares_computed"]


def grouping_kernel(problem: Problem, rows: Rows) -> SparseKernel | None:
    """Return the kernel that `auto` may take for a network's first layers, and that drops and groups rows, if any.

    Where there is nothing to choose from, it is None.
    """
    kernels = problem.kernels
    grouping = [kernel for kernel in kernels.sparse if kernel.groups_rows and kernel.prepare is not None]
    if not grouping or (len(kernels.sparse) == 1 and not kernels.converts):
        return None
    network = problem.merged.network
    first, last = network.runs()[0]
    if network[0].family is not SparseLinear or problem.sparse_bytes(first, last) > problem.weight_memory:
        return None
    try:
        layers, machine = network.sparse_layers(first, last), problem.backend.machine
        return able_sparse(grouping, machine, layers, rows.of_width(network.inputs))[0]
    except UsageError:
        return None


def shares_computed(problem: Problem, kernel: SparseKernel, features: Features, rows: Rows, weights: Weights) -> Array:
    """Run rows through the first sparse layers, and return the share of them that each layer had to compute.

    Parameters
    ----------
    kernel : what `grouping_kernel` returned.
    features : rows on the device.
    rows : their number and form.
    weights : the session's.

    Returns
    -------
    (layers,) float64; layers behind the first sparse ones have what these left.
    """
    network = problem.merged.network
    first, last = network.runs()[0]
    assert kernel.prepare is not None, "`grouping_kernel` saw to it"
    stack = weights.part(problem, Step(first, last, kernel))
    chain = kernel.prepare(stack, SparseProblem(rows.count, rows.form, problem.droppable_from, True))
    chain.run(features, True)
    counted = np.array([counts.rows for counts in chain.counts()]) / max(1, features.shape[0])
    return np.concatenate([counted, np.full(len(network) - last, counted[-1])])
