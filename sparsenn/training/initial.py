"""Initial parameters, drawn so that signals keep their size from layer to layer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from sparsenn.layers import Activation, Linear, ReLU


def initial_layers(
    widths: Sequence[int], activation: Activation, output_activation: Activation, generator: np.random.Generator
) -> tuple[Linear, ...]:
    """Draw the layers of an MLP; biases are zeros.

    Weights of a layer with ReLU are normal of variance 2/inputs (He, Zhang, Ren and Sun, 2015), those of any other
    uniform within ±√(6/(inputs + outputs)) (Glorot and Bengio, 2010).

    widths : of the input, of each hidden layer, of the output.
    activation, output_activation : of the hidden layers, and of the last.
    generator : where the numbers come from.
    """
    last = len(widths) - 2
    return tuple(
        _drawn(inputs, outputs, output_activation if number == last else activation, generator)
        for number, (inputs, outputs) in enumerate(pairwise(widths))
    )


def _drawn(inputs: int, outputs: int, activation: Activation, generator: np.random.Generator) -> Linear:
    if isinstance(activation, ReLU):
        weights = generator.normal(0.0, math.sqrt(2 / inputs), (inputs, outputs))
    else:
        limit = math.sqrt(6 / (inputs + outputs))
        weights = generator.uniform(-limit, limit, (inputs, outputs))
    return Linear(weights.astype(np.float32), np.zeros(outputs, np.float32), activation)
