"""RadiX-Net: the generator of the challenge's networks, after Kepner and Robinett (2019), "RadiX-Net: Structured
Sparse Matrices for Deep Neural Networks".

A mixed-radix numbering of the base nodes gives one sparse base matrix per digit; their product connects every node
with every node by exactly one path. A Kronecker product with ones widens each base node to a block of neurons, and
a random permutation of each repetition's inputs keeps the repetitions from looking alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from sparsenn.errors import UsageError
from sparsenn.formats import CSC, INDEX32_LIMIT, Array, index_dtype
from sparsenn.formats.arrays import as_floats, frozen, real_number, size
from sparsenn.io.challenge.layout import CHALLENGE_CLIP
from sparsenn.layers import ReLU, SparseLinear
from sparsenn.network import Network
from sparsenn.printable import kind_of
from sparsenn.runtime.memory import check_memory
from sparsenn.runtime.progress import ProgressOption, shown_progress


def radixnet(
    neurons: int,
    layers: int,
    *,
    radices: Sequence[int] | None = None,
    kronecker: int = 16,
    seed: int = 0,
    weight: float = 0.0625,
    bias: float | None = None,
    progress: ProgressOption = None,
) -> Network:
    """Generate a RadiX-Net: layers of one width, iso-valued, each neuron with radix × kronecker inputs and outputs.

    Layer k of a cycle (k counted from 0, one layer per radix) connects base row r to the base columns r, r - s,
    r - 2s, … of a ring, as many as radix k says, where s is the product of the radices before it. Neuron n belongs
    to base node n mod (neurons / kronecker). From the second cycle on, the rows of all layers of a cycle are moved
    by one random permutation; the first cycle, and every column, stays where it is. A network with fewer layers and
    the same seed is a prefix of one with more.

    Parameters
    ----------
    neurons : int
        Width of every layer.
    layers : int
        Number of layers, of which the last cycle may hold fewer than a whole one.
    radices : sequence of int, optional
        Radix of each layer of a cycle; their product is the number of base nodes, neurons / kronecker. Unless given,
        all are 2 (and the number of base nodes is a power of two), as in the challenge.
    kronecker : int, default 16
        Neurons per base node.
    seed : int, default 0
        Seed of the permutations (NumPy's PCG64).
    weight : float, default 0.0625
        Value of every weight.
    bias : float, optional
        Bias of every neuron; none unless given.
    progress : callable or bool, optional
        As `sparsenn.Session.run` takes it.

    Returns
    -------
    Network
        Sparse layers, with the challenge's clipped ReLU.

    Raises
    ------
    UsageError
        A number is out of range, or neurons, radices and Kronecker factor do not fit together.
    ResourceError
        Memory does not suffice.
    """
    neurons, layers, kronecker = size(neurons, "neurons"), size(layers, "layers"), size(kronecker, "kronecker")
    if radices is not None and not isinstance(radices, Sequence | np.ndarray):
        raise UsageError(f"the radices are {kind_of(radices)}; give a list of integers")
    radices = _checked_radices(
        neurons, layers, None if radices is None else [size(radix, "a radix") for radix in radices], kronecker
    )
    weight, seed = real_number(weight, "the weight"), size(seed, "the seed", 0)
    _check_memory(neurons, layers, radices, kronecker)
    values = frozen(as_floats(np.array([weight]), np.float32))
    offsets = {radix: frozen(np.arange(neurons + 1, dtype=np.int64) * (radix * kronecker)) for radix in set(radices)}
    made = []
    with shown_progress(progress) as report:
        for number, (radix, columns) in enumerate(_layer_indices(neurons, layers, radices, kronecker, seed), start=1):
            weights = CSC((neurons, neurons), offsets[radix], frozen(columns), values)
            made.append(SparseLinear(weights, bias, ReLU(CHALLENGE_CLIP)))
            report("generate network", number, layers)
    return Network(tuple(made))


def _checked_radices(neurons: int, layers: int, radices: Sequence[int] | None, kronecker: int) -> tuple[int, ...]:
    for what, number in (("neurons", neurons), ("layers", layers), ("a Kronecker factor", kronecker)):
        if not 1 <= number <= INDEX32_LIMIT:
            raise UsageError(f"cannot generate a network with {what} of {number}; give 1 to {INDEX32_LIMIT:,}")
    nodes, rest = divmod(neurons, kronecker)
    if rest or nodes < 2:
        raise UsageError(
            f"{neurons} neurons are not two or more base nodes of {kronecker} neurons each; "
            "give a multiple of the Kronecker factor, or another factor"
        )
    if radices is None:
        radices = (2,) * (nodes.bit_length() - 1)
        remedy = "give radices whose product it is"
    else:
        remedy = "give radices with that product, or other neurons"
    if min(radices, default=0) < 2 or math.prod(radices) != nodes:
        raise UsageError(
            f"radices {list(radices)} (product {math.prod(radices)}, each 2 or more) do not match the {nodes} base "
            f"nodes of {neurons} neurons with a Kronecker factor of {kronecker}; {remedy}"
        )
    return tuple(radices)


def _check_memory(neurons: int, layers: int, radices: tuple[int, ...], kronecker: int) -> None:
    """Refuse a network that would not fit: its indices, and the offsets of each kind of layer."""
    entries = sum(radices[layer % len(radices)] for layer in range(layers)) * kronecker * neurons
    offsets = len(set(radices)) * (neurons + 1) * 8
    needed = entries * index_dtype(neurons).itemsize + offsets
    check_memory(needed, f"a network of {neurons:,} neurons and {layers:,} layers", "take fewer of either")


def _layer_indices(
    neurons: int, layers: int, radices: tuple[int, ...], kronecker: int, seed: int
) -> Iterator[tuple[int, Array]]:
    """Yield each layer's radix and its CSC row indices, (neurons × radix × kronecker,), sorted within a column.

    All neurons of one base node have the same inputs: they are sorted once and repeated.
    """
    generator = np.random.default_rng(seed)
    nodes = neurons // kronecker
    dtype = index_dtype(neurons)
    place = np.arange(neurons, dtype=dtype)
    blocks = np.arange(kronecker)[:, None] * nodes
    for layer in range(layers):
        position = layer % len(radices)
        if position == 0 and layer:
            place = generator.permutation(neurons).astype(dtype)
        radix, stride = radices[position], math.prod(radices[:position])
        base_rows = (np.arange(nodes)[:, None] + np.arange(radix) * stride) % nodes
        rows = place[(base_rows[:, None, :] + blocks).reshape(nodes, radix * kronecker)]
        rows.sort(axis=1)
        yield radix, np.tile(rows, (kronecker, 1)).reshape(-1)
