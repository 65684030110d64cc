"""Backends: what computes a layer, behind one protocol."""

from sparsenn.backends.contract import (
    Backend,
    ConvolutionKernel,
    DenseKernel,
    Features,
    ImageStack,
    Kernel,
    LayerCounts,
    NumberCheck,
    NumberLog,
    Replay,
    RowsCheck,
    RowsLeft,
    RowsWatch,
    SparseChain,
    SparseKernel,
    SparseProblem,
    SparseRows,
    StepInput,
    StepOutput,
    TrainingKernel,
    Tunable,
)
from sparsenn.backends.host_arrays import all_finite
from sparsenn.backends.machine import MACHINES, Machine, machine_named
from sparsenn.backends.registry import automatic, kernel_named, kernels, operations, reproducible_kernels
from sparsenn.backends.selection import DOUBLE_DEVICE, backend_elsewhere, backend_for, gpus
from sparsenn.backends.steps import image_kernel, run_images
from sparsenn.backends.stepwise import Stepwise
from sparsenn.backends.trainer import Trainer, TrainingProblem

__all__ = [
    "DOUBLE_DEVICE",
    "MACHINES",
    "Backend",
    "ConvolutionKernel",
    "DenseKernel",
    "Features",
    "ImageStack",
    "Kernel",
    "LayerCounts",
    "Machine",
    "NumberCheck",
    "NumberLog",
    "Replay",
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
    "Tunable",
    "all_finite",
    "automatic",
    "backend_elsewhere",
    "backend_for",
    "gpus",
    "image_kernel",
    "kernel_named",
    "kernels",
    "machine_named",
    "operations",
    "reproducible_kernels",
    "run_images",
]
