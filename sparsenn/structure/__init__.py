"""Structure: what the weights of sparse layers have in common, found exactly; and networks as ONNX graphs."""

from sparsenn.structure.finding import Structure, find_structure

__all__ = ["Structure", "find_structure"]
