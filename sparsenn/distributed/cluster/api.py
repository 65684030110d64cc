"""`infer`: a network run on rows by a Dask cluster."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from scipy.sparse import csr_array

from sparsenn.distributed.cluster.library import dask_module
from sparsenn.distributed.cluster.local import local_cluster
from sparsenn.distributed.cluster.rows import Rows, rows_of
from sparsenn.distributed.cluster.tasks import address_of, computed, hold, worker_count
from sparsenn.distributed.cluster.work import Sizes, block_of, sizes_of, work_for
from sparsenn.distributed.digests import content_digest, prepare_key
from sparsenn.distributed.pieces import opened_pieces, target_of
from sparsenn.engine.options import NamedOptions, Options, read_options, resolve_precision
from sparsenn.errors import UsageError
from sparsenn.formats import Array
from sparsenn.formats.arrays import size
from sparsenn.network import Network
from sparsenn.printable import kind_of
from sparsenn.runtime.progress import ProgressOption, shown_progress

# A piece's rows, or outputs if wider, in float32: enough work to outweigh the cost of its handling.
PIECE_BYTES = 1 << 30  # of sparse rows
DENSE_PIECE_BYTES = 64 << 20  # of dense rows

_FREE_OPTIONS = ("batch_size", "memory_limit", "weight_memory")
"""Options that may differ when a run resumes: what was too much is why it ended."""


@dataclass(frozen=True)
class ClusterRun:
    """What a cluster has run into a file.

    Parameters
    ----------
    output : Path
        The file.
    rows : int
        Rows in all.
    resumed : int
        Rows that an earlier run had done.
    pieces : int
        Pieces in all.
    categories : array, shape (categories,), int64
        Sorted numbers of the rows, counted from 0, with an output that is not zero.
    inputs, layers, edges : int
        Width and depth of the network, and the multiply-adds of a row.
    scheduler : str
        Address of the scheduler.
    workers : int
        Number of workers at the end.
    seconds : float
        Wall time from the first look at the workers to the last piece.
    """

    output: Path
    rows: int
    resumed: int
    pieces: int
    categories: Array
    inputs: int
    layers: int
    edges: int
    scheduler: str
    workers: int
    seconds: float

    @property
    def edges_per_second(self) -> float:
        """The challenge's rate: rows × edges / seconds, of the rows that this run did."""
        return (self.rows - self.resumed) * self.edges / self.seconds if self.seconds else 0.0


def infer(
    network: Network | str | os.PathLike[str],
    rows: Any,
    client: Any = None,
    *,
    output: str | os.PathLike[str] | None = None,
    resume: bool = False,
    piece: int | None = None,
    form: str | None = None,
    prepare: Callable[[Any], Any] | None = None,
    classes: bool = False,
    progress: ProgressOption = None,
    **options: Unpack[NamedOptions],
) -> Any:
    """Run a network on a Dask cluster: rows are split, and every worker keeps one session.

    The outputs are those of one session, bit for bit as far as `docs/exactness.md` says that they do not depend on the
    number of rows; with `reproducible=True` for any network.

    ::

        with sparsenn.distributed.local_cluster(2) as client:
            outputs = sparsenn.distributed.infer("model.h5", rows, client)    # a Dask array: nothing is computed yet
            print(outputs.compute())

    Parameters
    ----------
    network : Network, str or path-like
        The file of a model or a dataset, which every worker has under the same path and with the same content; or a
        network, which is sent to every worker once.
    rows : array, scipy.sparse matrix, CSR, dask.array.Array, str or path-like
        Of shape (rows, network.inputs). Of a file, as `sparsenn.stream` takes it but for text, workers read their
        parts; of a Dask array the chunks along rows are the parts.
    client : distributed.Client, optional
        Of the cluster; unless given, the current one. Without any, a lazy array is computed by the threads of this
        process, and a file is written by a cluster of this machine that is started for it.
    output : str or path-like, optional
        A file as `sparsenn.stream` writes it, piece by piece, as workers are done with them; unless given, a lazy array
        is returned.
    resume : bool, default False
        Whether to go on where another run with the same network, options and rows left off.
    piece : int, optional
        Rows of a piece; by default what 64 MiB of float32 hold, 1 GiB if rows and outputs are sparse. A run that goes
        on takes those of the run before; a lazy array of a Dask array keeps its chunks.
    form : {'dense', 'csr'}, optional
        Of a lazy array; by default that of the rows.
    prepare : callable, optional
        What workers do to rows first, such as scaling. A run can be resumed only with what `sparsenn.stream` can.
    classes : bool, default False
        Write the number of the largest output of each row, counted from 0, instead of the outputs.
    progress : callable or bool, optional
        As `sparsenn.Session.run` takes it; called with the rows that are written.
    **options : Options
        As `sparsenn.Session` takes them. Each is the workers' business, such as which device is there.

    Returns
    -------
    dask.array.Array or ClusterRun
        Of shape (rows, network.outputs), of NumPy arrays or of SciPy's CSR; or what was run into the file.

    Raises
    ------
    UsageError
        Dask is not installed; what is given is none of the above; or there are pieces of an earlier run, and `resume`
        is not set, or of another network, options, rows or preparation, or it is not known of which; or the output is
        a file that is read.
    InputError
        The file of rows changes while it is read into another.
    WorkerError
        A worker cannot run the network: it has no such file, another one, or another version of sparsenn; or the
        scheduler is lost.
    ResourceError
        The file cannot be written, or is being written by another process.
    SparseNNError
        As reading, `Session` and its calls do. What fails in a lazy array is raised when it is computed.
    """
    library = dask_module("distributed")
    chosen = read_options(options)
    if form not in (None, "dense", "csr"):
        raise UsageError(f"outputs are dense or csr, not {form!r}")
    target = None if output is None else target_of(output, classes, rows, network)
    if resume and target is None:
        raise UsageError("resume continues a file; name it (output)")
    preparation = prepare_key(prepare, resume)
    most = None if piece is None else size(piece, "the rows of a piece")
    work = work_for(network, chosen, prepare)
    with ExitStack() as stack:
        client = _checked(library, client)
        if client is None and target is not None:
            client = stack.enter_context(local_cluster(device=chosen.device))
        start = time.perf_counter()
        held, sizes = (work, sizes_of(work)) if client is None else hold(client, work)
        found = rows_of(rows, sizes.inputs)
        dtype = _dtype(chosen, sizes)
        if target is None:
            return _lazy(found, held, most, form, sizes, dtype)
        known = work.digest, _kept(chosen), found.digest(), target.suffix.lower(), classes, preparation
        usual = most or _usual(found, sizes, target.suffix.lower() == ".tsv")
        report = stack.enter_context(shown_progress(progress))
        with opened_pieces(target, lambda: content_digest("cluster", *known), usual, resume) as pieces:
            cut = found.cut(pieces.size)
            edges, count = dict(enumerate(cut.edges(pieces.size))), cut.shape[0]
            resumed = done = sum(part.rows for part in pieces.done.values())
            wanted = "none" if target.suffix.lower() == ".tsv" else "classes" if classes else "all"
            if wanted != "none":
                shape = (count,) if classes else (count, sizes.outputs)
                pieces.prepare(shape, np.int64 if classes else dtype, stack)
            report("rows", done, count)
            missing = {number: edge for number, edge in edges.items() if number not in pieces.done}
            for number, (part, outputs) in computed(client, held, cut, wanted, missing):
                cut.check_unchanged()
                pieces.keep(number, part.from_row(edges[number][0]), outputs)
                done += part.rows
                report("rows", done, count)
            categories = pieces.categories
            pieces.finish()
        return ClusterRun(
            *(target, count, resumed, len(edges), categories, sizes.inputs, sizes.layers, sizes.edges),
            *(address_of(client), worker_count(client), time.perf_counter() - start),
        )


def _usual(rows: Rows, sizes: Sizes, sparse: bool) -> int:
    most = PIECE_BYTES if sparse and rows.is_sparse else DENSE_PIECE_BYTES
    return max(1, most // (4 * max(sizes[:2])))


def _kept(options: Options) -> list[Any]:
    """Return the options that must be the same in a run that goes on."""
    return [getattr(options, field.name) for field in fields(options) if field.name not in _FREE_OPTIONS]


def _dtype(options: Options, sizes: Sizes) -> type[np.floating[Any]]:
    doubles = options.device == "reference" or resolve_precision(options, sizes.needs_float64).precision == "float64"
    return np.float64 if doubles else np.float32


def _checked(library: Any, client: Any) -> Any:
    """Return a client that waits for its answers, the current one for None; None if there is none."""
    if client is None:
        with suppress(ValueError):
            return library.default_client()
        return None
    if not isinstance(client, library.Client) or client.asynchronous:
        kind = "is asynchronous" if hasattr(client, "asynchronous") else f"is {kind_of(client)}"
        raise UsageError(f"the client {kind}; give a distributed.Client, such as Client('tcp://10.0.0.1:8786')")
    return client


def _lazy(rows: Rows, work: Any, most: int | None, form: str | None, sizes: Sizes, dtype: Any) -> Any:
    form = form or ("csr" if rows.is_sparse else "dense")
    array = rows.as_dask(most or _usual(rows, sizes, form == "csr"))
    chunks, none = (array.chunks[0], (sizes.outputs,)), np.zeros((0, sizes.outputs), dtype)
    meta = none if form == "dense" else csr_array(none)
    return array.map_blocks(block_of, work, form, dtype=dtype, chunks=chunks, meta=meta)
