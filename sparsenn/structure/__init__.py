"""Structure: what the weights of sparse layers have in common, found exactly."""

from sparsenn.structure.blocks import Blocks, Tiles
from sparsenn.structure.finding import LayerStructure, Patterns, Structure, find_structure
from sparsenn.structure.kronecker import Kronecker

__all__ = ["Blocks", "Kronecker", "LayerStructure", "Patterns", "Structure", "Tiles", "find_structure"]
