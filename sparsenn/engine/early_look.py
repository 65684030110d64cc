"""The early look: how many rows die, or become equal, on their way through the first sparse layers.

Sparse layers take far less time where many rows die or become equal, and some kernels, and dense products, more than
others where there are none. Which it is depends on the network and its rows alone. So the first rows of a form are
run once through a kernel of sparse layers, and what it counts decides for all that follow. That is done, too, where
rows may neither leave nor become one: whether layers are multiplied as sparse or as dense ones must not depend on it.
"""

from __future__ import annotations

import numpy as np

from sparsenn.backends import Features, SparseKernel, SparseProblem
from sparsenn.backends.stepwise import chain_of
from sparsenn.engine.choosing import RowsShape, is_dense_enough
from sparsenn.engine.compiled_network import CompiledNetwork
from sparsenn.engine.kernels import able_sparse
from sparsenn.engine.steps import Step
from sparsenn.engine.weight_cache import WeightCache
from sparsenn.errors import UsageError
from sparsenn.formats import Array
from sparsenn.layers import SparseLinear

__all__ = ["looking_kernel", "shares_computed"]


def looking_kernel(compiled: CompiledNetwork, rows: RowsShape) -> SparseKernel | None:
    """Return the kernel that is to look: one that `auto` may take for a network's first layers; None if there is none.

    It drops and groups rows by itself, if any does. Where there is nothing to choose from, it is None: where none does,
    and no layer has enough weights to be multiplied as a dense one.
    """
    kernels, network = compiled.kernels, compiled.merged.network
    first, last = network.runs()[0]
    if network[0].family is not SparseLinear or compiled.sparse_bytes(first, last) > compiled.weight_memory:
        return None
    layers, machine = network.layers_of(SparseLinear, first, last), compiled.backend.machine
    looking = [kernel for kernel in kernels.sparse if kernel.groups_rows and kernel.prepare is not None]
    if not looking and compiled.backend.in_host_memory and kernels.converts and any(map(is_dense_enough, layers)):
        looking = [kernel for kernel in kernels.sparse if kernel.fuses and kernel.prepare is None]
    if not looking or (len(kernels.sparse) == 1 and not kernels.converts):
        return None
    try:
        return able_sparse(looking, machine, layers, rows.of_width(network.inputs))[0]
    except UsageError:
        return None


def shares_computed(
    compiled: CompiledNetwork, kernel: SparseKernel, features: Features, rows: RowsShape, weights: WeightCache
) -> Array:
    """Run rows through the first sparse layers, and return the share of them that each layer had to compute.

    Parameters
    ----------
    kernel : what `looking_kernel` returned.
    features : rows on the device.
    rows : their number and form.
    weights : the session's.

    Returns
    -------
    (layers,) float64; layers behind the first sparse ones have what these left.
    """
    network = compiled.merged.network
    first, last = network.runs()[0]
    stack = weights.part(compiled, Step(first, last, kernel))
    asked = SparseProblem(rows.count, rows.form, compiled.droppable_from, True)
    chain = chain_of(compiled.backend, kernel, stack, network.layers_of(SparseLinear, first, last), asked)
    chain.run(features, True)
    counted = np.array([counts.rows for counts in chain.counts()]) / max(1, features.shape[0])
    return np.concatenate([counted, np.full(len(network) - last, counted[-1])])
