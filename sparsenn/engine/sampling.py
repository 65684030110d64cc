"""Sampling: how many rows die, or become equal, on their way through the first sparse layers.

Sparse layers take far less time where many rows die or become equal, and some kernels, and dense products, more than
others where there are none. The network and its rows alone decide that. So the first rows of a form are run once
through a kernel of sparse layers, whose counts decide for all that follow. They are counted even where rows may neither
be dropped nor merged: whether layers are multiplied as sparse or as dense ones must not depend on it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from sparsenn.backends import Features, SparseKernel
from sparsenn.backends.kernel_records import SPARSE_OPERATION
from sparsenn.engine.bound_steps import RunContext
from sparsenn.engine.choosing import RowsShape, is_dense_enough
from sparsenn.engine.compiled_network import CompiledNetwork
from sparsenn.engine.executable import Executable
from sparsenn.engine.kernels import able_sparse
from sparsenn.engine.layer_counter import LayerCounter
from sparsenn.engine.plan import Plan
from sparsenn.engine.steps import Step
from sparsenn.errors import UsageError
from sparsenn.formats import Array
from sparsenn.layers import SparseLinear

__all__ = ["sampling_kernel", "shares_computed"]


def sampling_kernel(compiled: CompiledNetwork, rows: RowsShape) -> SparseKernel | None:
    """Return the kernel that runs a sample: one that `auto` may take for a network's first layers; None without any.

    It drops and groups rows by itself, if any does. It is None where there is nothing to choose from: where none does,
    and no layer has enough weights to be multiplied as a dense one.
    """
    kernels, network = compiled.kernels[SPARSE_OPERATION], compiled.merged.network
    first, last = network.runs()[0]
    if network[0].family is not SparseLinear or compiled.sparse_bytes(first, last) > compiled.weight_memory:
        return None
    layers, machine = network.layers_of(SparseLinear, first, last), compiled.backend.machine
    able = [kernel for kernel in kernels if kernel.groups_rows and kernel.prepare is not None]
    if not able and compiled.backend.in_host_memory and compiled.converts and any(map(is_dense_enough, layers)):
        able = [kernel for kernel in kernels if kernel.fuses and kernel.prepare is None]
    if not able or (len(kernels) == 1 and not compiled.converts):
        return None
    try:
        return able_sparse(able, machine, layers, rows.of_width(network.inputs))[0]
    except UsageError:
        return None


def shares_computed(
    compiled: CompiledNetwork,
    kernel: SparseKernel,
    features: Features,
    rows: RowsShape,
    bind: Callable[[Plan], Executable],
) -> Array:
    """Run rows through the first sparse layers, and return the share of them that each layer had to compute.

    Parameters
    ----------
    kernel : as `sampling_kernel` returns it.
    features, rows : the rows on the device, and their number and form.
    bind : returns the executable of a plan.

    Returns
    -------
    (layers,) float64; layers behind the first sparse ones have that of the last of these.
    """
    network = compiled.merged.network
    first, last = network.runs()[0]
    saving = replace(compiled, options=replace(compiled.options, compaction=True, deduplication=True))
    plan = Plan(saving, rows.count, None, rows, (Step(first, last, kernel),), rows.count)
    counter = LayerCounter.of(network)
    bind(plan).run(features, RunContext(counter=counter))
    shares = np.array([layer.counts.rows for layer in counter.layers[first:last]]) / max(1, rows.count)
    return np.concatenate([shares, np.full(len(network) - last, shares[-1])])
