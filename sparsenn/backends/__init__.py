"""Backends: what computes a layer, behind one protocol."""

from sparsenn.backends import cpu, dense, layer_ladder, mlp_ladder, reference, reference_training, train_ladder
from sparsenn.backends.base import (
    Backend,
    Features,
    LayerCounts,
    StepInput,
    StepOutput,
    Variant,
    launch_dense,
    operations,
    variant,
    variants,
)
from sparsenn.backends.cpu import training
from sparsenn.backends.selection import backend_for
from sparsenn.backends.trainer import Trainer, TrainingProblem

__all__ = [
    "Backend",
    "Features",
    "LayerCounts",
    "StepInput",
    "StepOutput",
    "Trainer",
    "TrainingProblem",
    "Variant",
    "backend_for",
    "cpu",
    "dense",
    "launch_dense",
    "layer_ladder",
    "mlp_ladder",
    "operations",
    "reference",
    "reference_training",
    "train_ladder",
    "training",
    "variant",
    "variants",
]
