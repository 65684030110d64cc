"""Compiling the CPU kernels ahead of their first use; numba keeps the machine code on disk for later processes."""

from __future__ import annotations

import numpy as np

from sparsenn.backends import TrainingProblem, kernels
from sparsenn.backends.kernel_records import CONV_OPERATION, SPARSE_OPERATION
from sparsenn.backends.stepwise import DEPTH
from sparsenn.backends.trainer import TRAINING_OPERATION
from sparsenn.engine.session import Session
from sparsenn.formats import COO, CSC, CSR, coo_to_csc, coo_to_csr, csc_to_csr, csr_to_csc, from_dense
from sparsenn.layers import AvgPool2d, Conv2d, Linear, LogSoftmax, MaxPool2d, ReLU, Softmax, SparseLinear
from sparsenn.network import Network
from sparsenn.runtime.progress import Progress, silent

WIDTH = 8


def compile_kernels(progress: Progress = silent) -> None:
    """Run a tiny problem through every CPU kernel, conversion and trainer, so that all of them are compiled.

    This takes up to half a minute where nothing is compiled yet, and none where everything is. Matrices wider than
    65,536 have 32-bit indices, and compile their own code when they first occur.
    """
    weights = np.kron(np.eye(WIDTH // 2), np.ones((2, 2)))  # equal columns, so that merging has work to do
    rows, columns = np.nonzero(weights)
    entries = COO.from_arrays((WIDTH, WIDTH), rows, columns, np.ones(rows.size, np.float32))
    valued = COO(entries.shape, entries.rows, entries.columns, np.linspace(0.5, 1, rows.size, dtype=np.float32))
    sparse, convolutions, trainers = (
        kernels(operation, "cpu") for operation in (SPARSE_OPERATION, CONV_OPERATION, TRAINING_OPERATION)
    )
    total = len(sparse) + len(convolutions) + len(trainers)
    for done, kernel in enumerate(sparse, start=1):
        for matrix in (entries, valued):
            weights_by_column, inputs = _converted(matrix)
            network = Network((SparseLinear(weights_by_column, -0.1, ReLU(32.0)),) * (DEPTH + 2))
            Session(network, kernel=kernel.name, device="cpu").run(inputs)
        progress("kernels", done, total)
    pixels = from_dense(np.ones((1, WIDTH)))
    for done, kernel in enumerate(convolutions, start=len(sparse) + 1):
        layers = Conv2d(np.ones((1, 1, 1, 1))), MaxPool2d(1), AvgPool2d(1), Softmax(), LogSoftmax()
        Session(Network(layers, image=(1, 1, WIDTH)), kernel=kernel.name, device="cpu").run(pixels)
        progress("kernels", done, total)
    data = np.ones((WIDTH, 1), np.float32)
    problem = TrainingProblem((Linear(np.ones((1, 1)), np.zeros(1)),), data, data, "mse", WIDTH, 0.1)
    for done, trainer in enumerate(trainers, start=len(sparse) + len(convolutions) + 1):
        trainer.launch(problem, 0).epoch(np.arange(WIDTH))
        progress("kernels", done, total)


def _converted(matrix: COO) -> tuple[CSC, CSR]:
    """Take a matrix through every conversion, and return it by columns and by rows."""
    by_row = coo_to_csr(matrix).validate()
    return coo_to_csc(matrix).validate(), csc_to_csr(csr_to_csc(by_row))
