"""The true categories of a generated dataset, by the float64 reference, where that is affordable; and near misses."""

from __future__ import annotations

import numpy as np

from sparsenn.backends import oracle as reference
from sparsenn.errors import UsageError
from sparsenn.formats import CSR, Array
from sparsenn.layers import ReLU, SparseLinear
from sparsenn.network import Network
from sparsenn.runtime.progress import Progress, silent
from sparsenn.runtime.storage import read_record, write_record

TRUTH_LIMIT = 4e12
"""Inputs × edges up to which the truth is computed: minutes, as 1024 × 120 (2.4e11) takes the reference 10 to 20 s."""

TRUTH_BATCH = 1 << 26
"""Elements of a batch's features in the reference: under 1 GB even if all of them are non-zero."""

TRUTH_STEP = 1e11
"""Inputs × edges of a batch, after which an interrupted computation resumes: some seconds."""

UNDECIDED_LIMIT = 1e9
"""Inputs × edges up to which `undecided_rows` bounds rounding: seconds; rounding does not decide more than that."""

_FORM = 1


def begin_record(record: str) -> None:
    """Write a record in the cache folder of a truth of which nothing is computed yet."""
    write_record(record, _FORM, {"inputs": 0, "categories": []})


def compute_truth(
    network: Network, inputs: CSR, progress: Progress = silent, record: str | None = None
) -> tuple[Array | None, str]:
    """Compute the true categories; None if that would take too long.

    network, inputs : the problem; inputs of shape (rows, network.inputs).
    progress : called as `progress("compute truth", done, total)`.
    record : file in the cache folder that holds the categories of the first inputs after each batch, from which an
        interrupted computation resumes; None for no such file.

    Returns
    -------
    (int64 of shape (categories,) or None, str)
        Sorted categories, counted from 0; and the way they were computed, or the reason why not, in words.
    """
    work = inputs.shape[0] * network.edges
    if work > TRUTH_LIMIT:
        return None, f"not computed: {work:.1e} multiply-adds would keep the float64 reference busy for many minutes"
    rows = inputs.shape[0]
    step = max(1, min(TRUTH_BATCH // network.widest, int(TRUTH_STEP // max(1, network.edges))))
    earlier = {} if record is None else read_record(record, _FORM)
    found, first = list(earlier.get("categories", [])), int(earlier.get("inputs", 0))
    for start in range(first, rows, step):
        stop = min(start + step, rows)

        def report(task: str, done: int, total: int, start: int = start, stop: int = stop) -> None:
            progress("compute truth", start * total + (stop - start) * done, rows * total)

        found += (start + reference.categories(network, inputs.slice_groups(start, stop), report)).tolist()
        if record is not None:
            write_record(record, _FORM, {"inputs": stop, "categories": found})
    return np.array(found, np.int64), f"{len(found)} categories, computed by the float64 reference"


def undecided_rows(network: Network, inputs: CSR, rows: Array) -> Array | None:
    """Return the rows that are categories or not by float32's rounding alone, within the bounds of docs/exactness.md.

    network, inputs : the problem; inputs of shape (rows, network.inputs).
    rows : int64 of shape (rows,), counted from 0: those that are looked at.

    Returns
    -------
    int64 of shape (undecided,) or None
        None where the bounds are not known, as for other layers than sparse ones with ReLU, or take too long.
    """
    try:
        layers = network.layers_of(SparseLinear)
    except UsageError:
        return None
    if not all(isinstance(layer.activation, ReLU) for layer in layers) or rows.size * network.edges > UNDECIDED_LIMIT:
        return None
    exact = inputs.to_scipy()[rows].toarray().astype(np.float64)
    low = high = exact
    for layer in layers:
        weights, bias = layer.weights.to_scipy().astype(np.float64), layer.bias_vector().astype(np.float64)
        units = (np.diff(layer.weights.indptr) + 2) * 2.0**-23
        error, sums = np.maximum(high - exact, exact - low), exact @ weights + bias
        error = error @ abs(weights) + units * ((np.abs(exact) + error) @ abs(weights) + np.abs(bias))
        low, exact, high = (layer.activation(each) for each in (sums - error, sums, sums + error))
    undecided: Array = rows[(low <= 0).all(axis=1) & (high > 0).any(axis=1)]
    return undecided
