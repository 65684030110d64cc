"""Backends: what computes a layer, behind one protocol."""

from sparsenn.backends import (
    conv_ladder,
    cpu,
    dense,
    gemm,
    gemm_ladder,
    layer_ladder,
    mlp_ladder,
    reference,
    reference_images,
    reference_training,
    train_ladder,
)
from sparsenn.backends.base import (
    Backend,
    Features,
    ImageStack,
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
from sparsenn.backends.images import image_kernel, launch_images, run_images
from sparsenn.backends.selection import backend_for
from sparsenn.backends.trainer import Trainer, TrainingProblem

__all__ = [
    "Backend",
    "Features",
    "ImageStack",
    "LayerCounts",
    "StepInput",
    "StepOutput",
    "Trainer",
    "TrainingProblem",
    "Variant",
    "backend_for",
    "conv_ladder",
    "cpu",
    "dense",
    "gemm",
    "gemm_ladder",
    "image_kernel",
    "launch_dense",
    "launch_images",
    "layer_ladder",
    "mlp_ladder",
    "operations",
    "reference",
    "reference_images",
    "reference_training",
    "run_images",
    "train_ladder",
    "training",
    "variant",
    "variants",
]
