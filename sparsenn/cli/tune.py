"""`sparsenn tune`: measure ahead of time which kernels are the fastest for a model."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparsenn.cli import options
from sparsenn.cli.console import console, reporting
from sparsenn.cli.files import STDOUT, check_files, write_document
from sparsenn.cli.startup import wake_gpu
from sparsenn.errors import UsageError
from sparsenn.io.files import is_model, kind_of, read_model
from sparsenn.printable import printable

if TYPE_CHECKING:
    from sparsenn.formats import CSR, Array
    from sparsenn.network import Network
    from sparsenn.runtime.progress import Progress


def tune(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="A model, as for predict, or a dataset, as for infer.", show_default=False
        ),
    ],
    rows: options.RowCounts = "1,64,1024,10000",
    inputs: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Rows to measure with, as for predict; by default, a dataset's, else random."
        ),
    ] = None,
    form: Annotated[
        str | None,
        typer.Option(metavar="dense|csr", help="Form of the rows; by default, csr for a dataset's own, else dense."),
    ] = None,
    steps: options.Steps = None,
    shape: options.Shape = None,
    device: options.Device = "auto",
    precision: options.Precision = "auto",
    json: options.Json = None,
    progress: options.ProgressFlag = None,
) -> None:
    """Measure which kernels are the fastest, for some numbers of rows, and store the choices.

    The first call of a later process reads them, and does not measure. Numbers of rows that round up to the same power
    of two share a choice.

    \b
    Examples:
      sparsenn tune model.onnx
      sparsenn tune model.h5 --rows 1,128,10000 --device cuda --precision tf32
      sparsenn tune model.h5 --inputs rows.npy --form csr
      sparsenn tune radixnet-1024x120 --rows 60000
    """
    counts = options.row_counts(rows)
    if form not in (None, "dense", "csr"):
        raise UsageError(f"--form {form}: take dense or csr")
    check_files({"MODEL": model, "--inputs": inputs}, {"--json": json})
    wake_gpu(device)
    with reporting(progress) as report:  # importing takes a second, too
        from sparsenn.engine import Session
        from sparsenn.report.records import to_json
        from sparsenn.report.tuning import Tuning, tuning_record, tuning_table
        from sparsenn.runtime.choices import FOLDER
        from sparsenn.runtime.storage import make_cache_folder

        folder = make_cache_folder(FOLDER)  # fails before anything is measured
        network, sample = _read(model, inputs, steps, shape, report)
        if form == "csr" and sample is None:
            raise UsageError("--form csr goes with --inputs, as random rows have no zeros")
        form = form or ("csr" if inputs is None else "dense")
        tunings = []
        with Session(network, device=device, precision=precision) as session:
            for count in counts:
                try:
                    batch = _rows(network, sample, form, count)
                except MemoryError:
                    raise UsageError(f"--rows {count}: memory has no room for these rows") from None
                start = time.perf_counter()
                tunings.append(Tuning(session.plan(batch), time.perf_counter() - start))
                report("numbers of rows", len(tunings), len(counts))
    screen = console(sys.stderr if json == STDOUT else sys.stdout)
    screen.print(tuning_table(Path(model).name, tunings))
    if any(tuning.choices for tuning in tunings):
        screen.print(printable(f"Choices are stored in {folder}, which a container can ship."), soft_wrap=True)
    if json is not None:
        write_document(json, to_json(tuning_record(model, str(folder), tunings)))


def _read(
    model: str, inputs: Path | None, steps: str | None, shape: str | None, report: Progress
) -> tuple[Network, CSR | None]:
    from sparsenn.cli.predict import read_model_rows
    from sparsenn.datasets import load
    from sparsenn.formats import from_dense

    if kind_of(model) is None or not is_model(model):
        if inputs is not None or steps is not None or shape is not None:
            raise UsageError("--inputs, --steps and --shape go with a model, which this is not")
        dataset = load(model, progress=report)
        return dataset.network, dataset.inputs
    found = read_model(Path(model), steps, shape=options.sample_shape(shape))
    return found.network, None if inputs is None else from_dense(read_model_rows(found, inputs))


def _rows(network: Network, sample: CSR | None, form: str | None, count: int) -> CSR | Array:
    """Return rows of a sample, repeated where they are fewer, or random ones between 0 and 1."""
    import numpy as np

    from sparsenn.formats import CSR

    if sample is None:
        return np.random.default_rng(0).random((count, network.inputs), np.float32)
    rows = sample.to_scipy()[np.arange(count) % sample.shape[0]]
    return CSR.from_scipy(rows) if form == "csr" else rows.toarray()
