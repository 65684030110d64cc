"""`infer`: a network run on rows by a Dask cluster."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import uuid4

import numpy as np

from sparsenn.distributed.cluster.chunked import ChunkedRows, chunks_of
from sparsenn.distributed.cluster.digests import content_digest
from sparsenn.distributed.cluster.gathering import compute_part, computed, look_at_workers, send_network, told_in_a_line
from sparsenn.distributed.cluster.library import dask_array, distributed_library
from sparsenn.distributed.cluster.local import local_cluster
from sparsenn.distributed.cluster.parts import Rows, rows_of
from sparsenn.distributed.cluster.pieces import Run, writing_pieces
from sparsenn.distributed.cluster.sessions import Sizes, name_of, session_of
from sparsenn.engine.options import Options
from sparsenn.errors import UsageError
from sparsenn.formats import CSR
from sparsenn.formats.arrays import size
from sparsenn.network import Network
from sparsenn.progress import Progress, silent

__all__ = ["infer"]

PIECE_BYTES, DENSE_PIECE_BYTES = 256 << 20, 64 << 20
"""Of a piece's rows, or outputs if these are wider, were they float32: enough work to outweigh that of handing it out.
The second is where they are."""

_OF_MEMORY: dict[str, Any] = {"batch_size": None, "memory_limit": None, "weight_memory": None}
"""Options that a run may change which goes on with the pieces of another: what was too much is why it ended."""


def infer(
    network: Network | str | os.PathLike[str],
    rows: Any,
    client: Any = None,
    *,
    output: str | os.PathLike[str] | None = None,
    resume: bool = False,
    piece: int | None = None,
    form: str | None = None,
    progress: Progress = silent,
    **options: Any,
) -> Any:
    """Run a network on a Dask cluster: rows are split, and every worker keeps one session.

    ::

        with sparsenn.distributed.local_cluster(2) as client:
            outputs = sparsenn.distributed.infer("model.h5", rows, client)    # a Dask array: nothing is computed yet
            print(outputs.compute())

    Parameters
    ----------
    network : the file of a model or a dataset, which every worker has under the same path and with the same content; or
        a network, which is sent to every worker once.
    rows : of shape (rows, network.inputs): a NumPy array, a SciPy sparse matrix, `CSR`, the path of an `.npy` file or
        of an HDF5 file with `inputs`, which workers read, or a Dask array, whose chunks along rows are the pieces.
    client : of the cluster; unless given, the current one. Without any, a lazy array is computed by the threads of this
        process, and pieces are by a cluster of this machine that is started for them.
    output : a folder that pieces are written to, by this process, as workers are done with them; unless given, a lazy
        array is returned.
    resume : whether to go on where another run with the same network, options and rows left off in the folder.
    piece : rows of a piece; by default what 64 MiB of float32 hold, 256 MiB if rows and outputs are sparse, or what
        the run that is resumed took. Of Dask arrays a chunk is a piece.
    form : of the outputs, dense or csr; by default that of the rows.
    progress : told of the rows that are written.
    options : those of `Session`. Each is the workers' business, such as which device is there.

    Returns
    -------
    A Dask array of shape (rows, network.outputs), of NumPy arrays or of SciPy's CSR; or the `Pieces` in the folder. The
    outputs are those of one session, bit for bit as far as `docs/exactness.md` says that they do not depend on the
    number of rows; with `reproducible=True` for any network.

    Raises
    ------
    UsageError
        Dask is not installed; or what is given is none of the above.
    WorkerError
        No worker can run the network: it has no such file, another one, or another version of sparsenn; or the cluster
        is lost.
    ResourceError
        The folder cannot be written, holds pieces of another run, or is being written to by another process.
    SparseNNError
        As reading, `Session` and its calls do. What fails in a lazy array is raised when it is computed.
    """
    array, chosen = dask_array(), Options.of(options)
    if form not in (None, "dense", "csr"):
        raise UsageError(f"outputs are dense or csr, not {form!r}")
    if resume and output is None:
        raise UsageError("resume goes on with what is in a folder; name it by output")
    client = _current() if client is None else _checked(client)
    if client is None and output is not None:
        again = partial(infer, network, rows, output=output, resume=resume, piece=piece, form=form, progress=progress)
        with local_cluster(device=chosen.device) as own:
            return again(client=own, **options)
    name, unfit = name_of(network), frozenset[str]()
    if client is None:
        sizes = Sizes.of(session_of(name, chosen).network)
    else:
        with told_in_a_line(client):
            if isinstance(network, Network):
                send_network(client, name, network)
            sizes, unfit = look_at_workers(client, name, chosen)
    found = chunks_of(rows, sizes.inputs) if isinstance(rows, array.Array) else rows_of(rows, sizes.inputs)
    form = form or ("csr" if found.sparse else "dense")
    usual = (PIECE_BYTES if found.sparse and form == "csr" else DENSE_PIECE_BYTES) // (4 * max(sizes[:2]))
    most = max(1, usual) if piece is None else size(piece, "the rows of a piece")
    compute = partial(compute_part, name, chosen, form=form)
    if output is None:
        compute = partial(_as_block, compute)
        double = chosen.precision == "float64" or chosen.device == "reference"
        return _lazy(found, compute, most, _empty(sizes.outputs, np.float64 if double else np.float32, form))
    run = Run(name.digest, content_digest(replace(chosen, **_OF_MEMORY)), found.digest, form, sizes)
    with writing_pieces(output, run, partial(found.edges, most), piece is None, resume) as pieces:
        missing = pieces.missing()
        done = pieces.resumed = pieces.rows - sum(pieces.length(number) for number in missing)
        progress("rows", done, pieces.rows)
        given = ((number, found.submitter(client, compute, *pieces.edges[number])) for number in missing)
        for number, outputs in computed(client, unfit, given):
            pieces.write(number, outputs)
            done += pieces.length(number)
            progress("rows", done, pieces.rows)
    return pieces


def _current() -> Any:
    """Return the current client; None if there is none."""
    try:
        return distributed_library().default_client()
    except ValueError:
        return None


def _checked(client: Any) -> Any:
    """Return what is a client that waits for what it asks."""
    if not isinstance(client, distributed_library().Client) or client.asynchronous:
        kind = "is asynchronous" if hasattr(client, "asynchronous") else f"is a {type(client).__name__}"
        raise UsageError(f"the client {kind}; give a distributed.Client, such as Client('tcp://10.0.0.1:8786')")
    return client


def _lazy(rows: Rows, compute: Callable[..., Any], most: int, none: Any) -> Any:
    """Return a Dask array of outputs that are computed when they are asked for.

    Parameters
    ----------
    rows : the inputs.
    compute : returns the outputs of a part.
    most : rows of a part.
    none : outputs of no rows.
    """
    width = none.shape[1]
    if isinstance(rows, ChunkedRows):
        given = rows.array
        return given.map_blocks(compute, dtype=none.dtype, chunks=(given.chunks[0], (width,)), meta=none)
    name, edges = f"sparsenn-{uuid4().hex}", rows.edges(most) or [(0, 0)]
    graph = {(name, number, 0): (compute, rows.part(*edge)) for number, edge in enumerate(edges)}
    lengths = tuple(last - first for first, last in edges)
    return dask_array().Array(graph, name, chunks=(lengths, (width,)), dtype=none.dtype, meta=none)


def _as_block(compute: Callable[[Any], Any], part: Any) -> Any:
    """Return the outputs of a part as Dask's arrays hold them: as a NumPy array, or SciPy's CSR."""
    outputs = compute(part)
    return outputs.to_scipy() if isinstance(outputs, CSR) else outputs


def _empty(outputs: int, dtype: type[np.floating[Any]], form: str) -> Any:
    """Return outputs of no rows."""
    if form == "dense":
        return np.zeros((0, outputs), dtype)
    from scipy.sparse import csr_array

    return csr_array((0, outputs), dtype=dtype)
