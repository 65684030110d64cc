"""Layers: parameters and shape rules, with no device code. Backends do the work."""

from sparsenn.layers.activation import Identity, ReLU, Sigmoid, Tanh
from sparsenn.layers.activation_names import activation_named
from sparsenn.layers.combining import Add, CombiningLayer, Concatenate, Multiply
from sparsenn.layers.conv2d import Conv2d
from sparsenn.layers.elementwise import Activation
from sparsenn.layers.flatten import Flatten
from sparsenn.layers.foreign import ForeignGraph, ForeignLayer, RowTensor
from sparsenn.layers.fully_connected import FullyConnected
from sparsenn.layers.images import ImageLayer
from sparsenn.layers.layer_norm import LayerNorm
from sparsenn.layers.linear import Linear
from sparsenn.layers.per_position import PerPosition, connected_layer, positions_of, replace_fields
from sparsenn.layers.pooling import AvgPool2d, MaxPool2d, Pool2d
from sparsenn.layers.slicing import Slice
from sparsenn.layers.softmax import LogSoftmax, Softmax, SoftmaxLayer
from sparsenn.layers.sparse_linear import SparseLinear

__all__ = [
    "Activation",
    "Add",
    "AvgPool2d",
    "CombiningLayer",
    "Concatenate",
    "Conv2d",
    "Flatten",
    "ForeignGraph",
    "ForeignLayer",
    "FullyConnected",
    "Identity",
    "ImageLayer",
    "LayerNorm",
    "Linear",
    "LogSoftmax",
    "MaxPool2d",
    "Multiply",
    "PerPosition",
    "Pool2d",
    "ReLU",
    "RowTensor",
    "Sigmoid",
    "Slice",
    "Softmax",
    "SoftmaxLayer",
    "SparseLinear",
    "Tanh",
    "activation_named",
    "connected_layer",
    "positions_of",
    "replace_fields",
]
