"""Backends: what computes a layer, behind one protocol."""

from sparsenn.backends import cpu, layer_ladder, reference
from sparsenn.backends.base import (
    Backend,
    Features,
    LayerCounts,
    StepInput,
    StepOutput,
    Variant,
    operations,
    variant,
    variants,
)
from sparsenn.backends.selection import backend_for

__all__ = [
    "Backend",
    "Features",
    "LayerCounts",
    "StepInput",
    "StepOutput",
    "Variant",
    "backend_for",
    "cpu",
    "layer_ladder",
    "operations",
    "reference",
    "variant",
    "variants",
]
