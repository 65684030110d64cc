"""What the kernels that keep their rows in CSR share: taking any features, and closing a layer."""

from __future__ import annotations

import numpy as np

from sparsenn.backends.chains import Features, LayerCounts, RowMap
from sparsenn.backends.cpu.rows import take_rows
from sparsenn.backends.kernel_records import StepInput, StepOutput
from sparsenn.formats import CSR, from_dense


def as_csr(features: Features) -> CSR:
    """Return the features as CSR."""
    return features if isinstance(features, CSR) else from_dense(features)


def finish(step: StepInput, kernel: str, outputs: CSR, edges: int) -> StepOutput:
    """Count one layer's outputs and drop the rows that are zero, if the step allows it."""
    lengths = np.diff(outputs.indptr)
    alive = lengths > 0
    copies = step.stack.copies[step.first]
    counts = LayerCounts(
        kernel=kernel,
        rows=outputs.shape[0],
        active_inputs=int(step.multiplicity[alive].sum()),
        nonzeros=int((copies[outputs.indices] * np.repeat(step.multiplicity, lengths)).sum()),
        performed_edges=edges,
    )
    survivors = np.flatnonzero(alive) if step.first >= step.droppable_from else np.arange(outputs.shape[0])
    features = outputs if survivors.size == outputs.shape[0] else take_rows(outputs, survivors)
    assert isinstance(features, CSR)
    return StepOutput(features, RowMap.of_survivors(survivors, outputs.shape[0]), (counts,))
