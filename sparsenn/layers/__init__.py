"""Layers: parameters and shape rules, with no device code. Backends do the work."""

from sparsenn.layers.activation import Activation, Identity, ReLU, Sigmoid, Tanh, activation_named
from sparsenn.layers.linear import Linear
from sparsenn.layers.sparse_linear import SparseLinear

__all__ = ["Activation", "Identity", "Linear", "ReLU", "Sigmoid", "SparseLinear", "Tanh", "activation_named"]
