"""`infer`: a network run on rows by Dask."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Unpack
from uuid import uuid4

import numpy as np
from scipy.sparse import csr_array

from sparsenn.distributed.cluster.library import dask_module
from sparsenn.distributed.cluster.rows import rows_of
from sparsenn.distributed.cluster.work import block_of, network_of, work_for
from sparsenn.engine.options import NamedOptions, read_options, resolve_precision
from sparsenn.errors import UsageError
from sparsenn.formats.arrays import size
from sparsenn.network import Network

# A piece's rows, or outputs if wider, in float32: enough work to outweigh the cost of its handling.
PIECE_BYTES = 1 << 30  # of sparse rows
DENSE_PIECE_BYTES = 64 << 20  # of dense rows


def infer(
    network: Network | str | os.PathLike[str],
    rows: Any,
    *,
    piece: int | None = None,
    form: str | None = None,
    prepare: Callable[[Any], Any] | None = None,
    **options: Unpack[NamedOptions],
) -> Any:
    """Run a network on a Dask cluster: rows are split, and every worker keeps one session.

    Nothing is computed before the array that is returned is: by the cluster of the current `distributed.Client`, or
    else by threads of this process.

    The outputs are those of one session, bit for bit as far as `docs/exactness.md` says that they do not depend on the
    number of rows; with `reproducible=True` for any network.

    ::

        with sparsenn.distributed.local_cluster(2):
            outputs = sparsenn.distributed.infer("model.h5", rows)
            print(outputs.compute())

    Parameters
    ----------
    network : Network, str or path-like
        The file of a model or a dataset, which every worker has under the same path and with the same content; or a
        network, which is sent to every worker once.
    rows : array, scipy.sparse matrix, CSR, dask.array.Array, str or path-like
        Of shape (rows, network.inputs). Of a file, as `sparsenn.stream` takes it but for text, workers read their
        parts; of a Dask array the chunks along rows are the parts.
    piece : int, optional
        Rows of a piece; by default what 64 MiB of float32 hold, 1 GiB if rows and outputs are sparse. A Dask array
        keeps its chunks.
    form : {'dense', 'csr'}, optional
        Of the outputs; by default that of the rows.
    prepare : callable, optional
        What workers do to rows first, such as scaling.
    **options : Options
        As `sparsenn.Session` takes them. Each is the workers' business, such as which device is there.

    Returns
    -------
    dask.array.Array
        Of shape (rows, network.outputs), of NumPy arrays or of SciPy's CSR. Computing it raises a WorkerError where a
        worker cannot run the network: it has no such file, another one, or another version of sparsenn.

    Raises
    ------
    UsageError
        Dask is not installed, or network or rows are none of the above.
    SparseNNError
        As reading and `Session` do.
    """
    dask = dask_module("dask")
    if form not in (None, "dense", "csr"):
        raise UsageError(f"outputs are dense or csr, not {form!r}")
    chosen = read_options(options)
    most = None if piece is None else size(piece, "the rows of a piece")
    work = work_for(network, chosen, prepare)
    ran = network_of(work)
    found = rows_of(rows, ran.inputs)
    form = form or ("csr" if found.is_sparse else "dense")
    usual = PIECE_BYTES if form == "csr" and found.is_sparse else DENSE_PIECE_BYTES
    array = found.lazy(most or max(1, usual // (4 * max(ran.inputs, ran.outputs))))
    doubles = chosen.device == "reference" or resolve_precision(chosen, ran.needs_float64).precision == "float64"
    none = np.zeros((0, ran.outputs), np.float64 if doubles else np.float32)
    # a task of its own: a network is sent once, and workers get it from each other
    shared = dask.delayed(work, name=f"sparsenn-work-{uuid4().hex}", traverse=False)
    chunks, meta = (array.chunks[0], (ran.outputs,)), none if form == "dense" else csr_array(none)
    return array.map_blocks(block_of, shared, form, dtype=none.dtype, chunks=chunks, meta=meta)
