"""Predict a table: read it in blocks, run the model, write the predictions, whatever the table's size."""

from __future__ import annotations

import os
from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparsenn.distributed.devices import Sessions, session_on
from sparsenn.distributed.sharing import ahead
from sparsenn.engine import Session
from sparsenn.engine.options import read_options
from sparsenn.errors import UsageError
from sparsenn.formats import Table
from sparsenn.io.files import read_model
from sparsenn.io.networks import NetworkSource, network_of
from sparsenn.io.tables.choosing import ChosenColumns, choose_columns, features_of, impute_means
from sparsenn.io.tables.columns import BLOCK_BYTES, Batch, Block, batches
from sparsenn.io.tables.files import open_table
from sparsenn.io.tables.predictions import prediction_table, table_writer
from sparsenn.model import Model, imported_model
from sparsenn.printable import one_line
from sparsenn.runtime.memory import check_memory
from sparsenn.runtime.progress import Progress, ProgressOption, shown_progress
from sparsenn.training.inference import check_finite_outputs

if TYPE_CHECKING:
    import pyarrow as pa

    from sparsenn.io.tables.csv import TextTable
    from sparsenn.io.tables.parquet import ParquetTable

__all__ = ["PredictedTable", "predict_table"]

_LEAST_BLOCK_BYTES = 1 << 20

_BLOCKS = 32
"""Blocks of text that a memory limit holds: what one becomes on its way takes several times its size."""

_BATCH_BLOCKS = 4
"""The memory of a batch's numbers, in blocks."""

_OUTPUT_COPIES = 4
"""Memory of a batch's outputs on their way to text, as a multiple of their own size."""


@dataclass(frozen=True, eq=False)
class PredictedTable:
    """The predictions of a model for the rows of a table.

    Parameters
    ----------
    rows : int
        Number of rows.
    columns : tuple of str
        Names of the columns of the predictions.
    path : Path or None
        The file of the predictions.
    table : pyarrow.Table or None
        The predictions, where they were not written to a file.
    notes : tuple of str
        Sentences on columns that were left out, and on missing values.
    """

    rows: int
    columns: tuple[str, ...]
    path: Path | None
    table: pa.Table | None
    notes: tuple[str, ...]

    __repr__ = one_line


def predict_table(
    model: NetworkSource | Session | Sessions,
    rows: str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    *,
    columns: Sequence[str] | None = None,
    ignore: Collection[str] = (),
    id: str | None = None,  # noqa: A002 (the name of the option)
    impute: bool = False,
    scores: bool = False,
    memory_limit: int | str | None = None,
    progress: ProgressOption = None,
    **options: Any,
) -> PredictedTable:
    """Predict the rows of a table, which need not fit into memory.

    Parameters
    ----------
    model : Model, Session, Sessions, or a model in another form
        A path, or an object that `sparsenn.Session` takes. A model that knows the names of its columns finds them by
        name, in any order. Of a session, only the network is known.
    rows : str or path-like
        The table: `.csv`, `.tsv`, both also with `.gz`, or `.parquet`; one row per sample.
    output : str or path-like, optional
        The file of the predictions, of the same kinds. Unless given, the predictions are returned.
    columns : sequence of str, optional
        The columns that the model takes, in its order, by their names, or by their numbers, counted from 1, where the
        table has no header.
    ignore : collection of str, optional
        Columns that the model does not take.
    id : str, optional
        A column that is copied to the predictions and that the model does not take.
    impute : bool, default False
        Whether missing numbers are replaced by the means of the training data or, where the model does not store
        these, by the means of the table, which is then read twice.
    scores : bool, default False
        Whether the predictions of a model with classes have a column for the score of each class.
    memory_limit : int or str, optional
        Bytes of memory, or a text such as "500M", for rows, on their way to predictions. The model comes on top.
    progress : callable or bool, optional
        As `sparsenn.Session.run` takes it; called with bytes of text, or rows of Parquet.
    **options : Options
        As `sparsenn.Session` takes them, and `devices`, as `sparsenn.Sessions` does; none with a session.

    Returns
    -------
    PredictedTable
        The number of rows, and the predictions or their file: the column `id`; `class`, by name or counted from 0, for
        a model with classes; scores, or the outputs of a model without classes.

    Raises
    ------
    ShapeError
        The columns do not fit the model.
    FileFormatError
        The table is damaged, holds no rows, or lacks a number, or a field is no number; the message names the line.
    InputError, ResourceError
        There is no such column, or file; or the file cannot be read or written.
    NumericError
        An output is not a finite number.
    UsageError
        The name of a file is not that of a table; or options are wrong or do not go together.
    """
    for names, what in ((columns, "columns"), (ignore, "columns to ignore")):
        if isinstance(names, str):
            raise UsageError(f"the {what} are {names!r}; give a list of names")
    limit = read_options({"memory_limit": memory_limit}).memory_limit
    block_bytes = BLOCK_BYTES if limit is None else min(BLOCK_BYTES, max(_LEAST_BLOCK_BYTES, limit // _BLOCKS))
    described = _described(model)
    features = features_of(described)
    known = [column.name for column in (() if features is None else features.columns)]
    known += [*(columns or ()), *ignore, *([] if id is None else [id])]
    with shown_progress(progress) as report, open_table(rows, known) as file:
        chosen, size = choose_columns(described, file, columns, ignore, id), file.size
        if impute:
            chosen = impute_means(chosen, described, file.path, _tables(file, chosen, report))
    held: list[pa.Table] = []
    count, names = 0, list[str]()
    with ExitStack() as files:
        report = files.enter_context(shown_progress(progress))
        write = held.append if output is None else files.enter_context(table_writer(output))
        session = _session(model, described, limit, options)
        reading = files.enter_context(closing(_batches(described, chosen, rows, known, block_bytes)))
        for batch in files.enter_context(ahead(reading, 1)):
            outputs = session(batch.rows, form="dense")
            check_finite_outputs(outputs, count)
            copied = None if id is None else (id, batch.copied)
            table = prediction_table(described, outputs, scores=scores, copied=copied)
            if output is None:
                check_memory(table.nbytes, f"{os.fspath(rows)}: the predictions", "have them written to a file")
            write(table)
            count, names = count + len(batch.rows), table.column_names
            report(f"predict {Path(rows).name}", batch.position, size)
        report(f"predict {Path(rows).name}", size, size)
    path = None if output is None else Path(output)
    return PredictedTable(count, tuple(names), path, _concatenated(held), chosen.notes)


def _described(model: NetworkSource | Session | Sessions) -> Model:
    if isinstance(model, Model):
        return model
    if isinstance(model, str | os.PathLike):
        return read_model(model)
    return imported_model(model.network if isinstance(model, Session | Sessions) else network_of(model), {})


def _session(
    model: NetworkSource | Session | Sessions, described: Model, limit: int | None, options: dict[str, Any]
) -> Session | Sessions:
    if isinstance(model, Session | Sessions):
        if options:
            raise UsageError(f"the session has its options; leave out {', '.join(options)}")
        return model
    session = session_on(described.network, **options)
    if limit is None or not isinstance(session, Session) or not session.backend.in_host_memory:
        return session
    return session.on(session.options.device, memory_limit=max(1, limit // 2))


def _batches(
    model: Model, chosen: ChosenColumns, rows: str | os.PathLike[str], known: Collection[str], block_bytes: int
) -> Generator[Batch, None, None]:
    """Yield the rows as the network takes them, equally many at a time: plans and buffers are those of one number."""

    def prepare(block: Block) -> Batch:
        inputs = chosen.encoding.encode(block.table)
        return Batch(inputs if model.scaling is None else model.scaling.apply(inputs), block.copied, block.position)

    with open_table(rows, known, block_bytes) as file:
        prepared = map(prepare, file.blocks(chosen.places, chosen.texts, chosen.id_place))
        first = next(prepared)
        row_bytes = 4 * (model.network.inputs + _OUTPUT_COPIES * model.network.outputs)
        size = max(1, min(len(first.rows), _BATCH_BLOCKS * block_bytes // row_bytes))
        yield from batches(chain([first], prepared), size)


def _tables(file: TextTable | ParquetTable, chosen: ChosenColumns, progress: Progress) -> Iterator[Table]:
    for block in file.blocks(chosen.places, chosen.texts):
        progress(f"means of {Path(file.path).name}", block.position, file.size)
        yield block.table


def _concatenated(tables: list[pa.Table]) -> pa.Table | None:
    import pyarrow as pa

    return pa.concat_tables(tables) if tables else None
