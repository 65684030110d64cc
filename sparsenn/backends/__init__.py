"""Backends: what computes a layer, behind one protocol."""

from sparsenn.backends.chains import (
    Features,
    LayerCounts,
    NumberCheck,
    RowMap,
    RowsCheck,
    RowsLeft,
    RowsWatch,
    SparseChain,
    SparseProblem,
    SparseRows,
)
from sparsenn.backends.contract import Backend
from sparsenn.backends.host_arrays import all_finite
from sparsenn.backends.kernel_records import (
    ConvolutionKernel,
    DenseKernel,
    Kernel,
    SparseKernel,
    StepInput,
    StepOutput,
    TrainingKernel,
)
from sparsenn.backends.launching import image_kernel, launch_of
from sparsenn.backends.machine import MACHINES, Machine, machine_named
from sparsenn.backends.registry import automatic, kernel_named, kernels, operations, permitted_kernels
from sparsenn.backends.selection import (
    DOUBLE_DEVICE,
    backend_elsewhere,
    backend_for,
    gpus,
    select_backend,
    select_kernels,
)
from sparsenn.backends.stepwise import Stepwise
from sparsenn.backends.trainer import Trainer, TrainingProblem

__all__ = [
    "DOUBLE_DEVICE",
    "MACHINES",
    "Backend",
    "ConvolutionKernel",
    "DenseKernel",
    "Features",
    "Kernel",
    "LayerCounts",
    "Machine",
    "NumberCheck",
    "RowMap",
    "RowsCheck",
    "RowsLeft",
    "RowsWatch",
    "SparseChain",
    "SparseKernel",
    "SparseProblem",
    "SparseRows",
    "StepInput",
    "StepOutput",
    "Stepwise",
    "Trainer",
    "TrainingKernel",
    "TrainingProblem",
    "all_finite",
    "automatic",
    "backend_elsewhere",
    "backend_for",
    "gpus",
    "image_kernel",
    "kernel_named",
    "kernels",
    "launch_of",
    "machine_named",
    "operations",
    "permitted_kernels",
    "select_backend",
    "select_kernels",
]
