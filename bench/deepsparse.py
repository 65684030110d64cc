"""Milliseconds of DeepSparse before it ended, as they were recorded once."""

from __future__ import annotations

__all__ = ["DEEPSPARSE", "DEEPSPARSE_NOTE"]

DEEPSPARSE = {
    ("LeNet-300-100, 1.9 %", 1): 0.052,
    ("LeNet-300-100, 1.9 %", 64): 0.068,
    ("LeNet-300-100, 1.9 %", 10_000): 7.6,
    ("LeNet-300-100, 20 %", 1): 0.054,
    ("LeNet-300-100, 20 %", 64): 0.105,
    ("LeNet-300-100, 20 %", 10_000): 13.3,
    ("24 × 1024, 32 an output", 1): 1.5,
    ("24 × 1024, 32 an output", 64): 2.2,
    ("24 × 1024, 32 an output", 6000): 225.0,
    ("12 × 1024, 102 an output", 1): 0.86,
    ("12 × 1024, 102 an output", 64): 1.9,
    ("12 × 1024, 102 an output", 6000): 204.0,
    ("4 × 4096, 205 an output", 1): 4.1,
    ("4 × 4096, 205 an output", 64): 8.4,
    ("4 × 4096, 205 an output", 6000): 1057.0,
    ("resnet18, 100 %", 1): 20.5,
    ("resnet18, 100 %", 16): 219.0,
    ("resnet18, 10 %", 1): 8.6,
    ("resnet18, 10 %", 16): 58.0,
    ("resnet50, 100 %", 1): 53.0,
    ("resnet50, 100 %", 16): 623.0,
    ("resnet50, 10 %", 1): 16.4,
    ("resnet50, 10 %", 16): 129.0,
    ("resnet50, 5 %", 1): 13.4,
    ("resnet50, 5 %", 16): 109.0,
    ("mobilenet_v2, 100 %", 1): 4.0,
    ("mobilenet_v2, 100 %", 16): 59.0,
    ("mobilenet_v2, 10 %", 1): 2.9,
    ("mobilenet_v2, 10 %", 16): 43.0,
}
"""Milliseconds of DeepSparse 1.8 by network and rows, recorded once."""

DEEPSPARSE_NOTE = (
    "DeepSparse ended in 2025: its times are medians of version 1.8.0 with networks of the same shape and density, "
    "recorded once on two cores of an AMD EPYC with AVX-512, in another run than the others'."
)
