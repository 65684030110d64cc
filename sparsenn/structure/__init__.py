"""Structure: what the weights of sparse layers have in common, found exactly."""

from sparsenn.structure.outputs import equal_outputs, proportional_outputs, scaled_outputs

__all__ = ["equal_outputs", "proportional_outputs", "scaled_outputs"]
