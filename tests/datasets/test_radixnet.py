from __future__ import annotations

import math
import tarfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsenn.datasets import radixnet
from sparsenn.errors import ResourceError, UsageError
from sparsenn.layers import ReLU
from sparsenn.runtime import memory


def dense_cycle(radices: list[int], kronecker: int) -> list[np.ndarray]:
    """The unpermuted layers of one cycle, entry by entry and by `np.kron`: (neurons, neurons), zeros and ones."""
    nodes = math.prod(radices)
    layers, stride = [], 1
    for radix in radices:
        base = np.zeros((nodes, nodes))
        for row in range(nodes):
            for step in range(radix):
                base[row, (row - step * stride) % nodes] = 1
        layers.append(np.kron(np.ones((kronecker, kronecker)), base))
        stride *= radix
    return layers


def rows_in_order(matrices: list[np.ndarray]) -> np.ndarray:
    """Rows of the matrices side by side, sorted: equal for two lists that differ by one permutation of the rows."""
    rows = np.hstack(matrices)
    return rows[np.lexsort(rows.T)]


@given(
    radices=st.lists(st.integers(2, 4), min_size=1, max_size=3),
    kronecker=st.integers(1, 3),
    cycles=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_equals_the_dense_construction_up_to_one_row_permutation_a_cycle(
    radices: list[int], kronecker: int, cycles: int, seed: int
) -> None:
    depth = len(radices)
    neurons = math.prod(radices) * kronecker
    network = radixnet(neurons, cycles * depth, radices=radices, kronecker=kronecker, seed=seed, weight=0.5)
    expected = dense_cycle(radices, kronecker)
    layers = [layer.weights.validate().to_scipy().toarray() / 0.5 for layer in network]
    for found, wanted in zip(layers[:depth], expected, strict=True):
        np.testing.assert_array_equal(found, wanted)
    for start in range(depth, len(layers), depth):
        np.testing.assert_array_equal(rows_in_order(layers[start : start + depth]), rows_in_order(expected))


def test_the_first_cycle_joins_every_pair_of_neurons_by_as_many_paths() -> None:
    network = radixnet(2 * 3 * 2 * 4, 3, radices=(2, 3, 2), kronecker=4, weight=1.0)
    paths = np.linalg.multi_dot([layer.weights.to_scipy().toarray() for layer in network])
    np.testing.assert_array_equal(paths, np.full(paths.shape, 4.0**2))


def test_permutations_differ_between_cycles_and_seeds() -> None:
    def cycle_starts(seed: int) -> list[bytes]:
        network = radixnet(256, 12, seed=seed)
        return [network[start].weights.indices.tobytes() for start in (0, 4, 8)]

    first, other = cycle_starts(1), cycle_starts(2)
    assert first == cycle_starts(1)
    assert first[0] == other[0]
    assert len({*first, *other}) == 5


def test_fewer_layers_are_a_prefix_of_more() -> None:
    short, long = radixnet(128, 7, seed=3), radixnet(128, 20, seed=3)
    for one, other in zip(short, long.prefix(7), strict=True):
        np.testing.assert_array_equal(one.weights.indices, other.weights.indices)


def test_the_challenges_constants_are_the_default() -> None:
    network = radixnet(1024, 120, bias=-0.3)
    assert (len(network), network.inputs, network.outputs, network.edges) == (120, 1024, 1024, 120 * 1024 * 32)
    for layer in network:
        assert layer.weights.iso
        assert layer.weights.values.tolist() == [0.0625]
        assert layer.bias == -0.3
        assert layer.activation == ReLU(32.0)
        assert layer.weights.indptr is network[0].weights.indptr, "offsets are shared, or deep networks take twice"
    assert radixnet(1024, 1)[0].bias is None


def test_indices_at_the_largest_16_bit_width() -> None:
    network = radixnet(65536, 13)
    assert network[12].weights.indices.dtype == np.uint16
    network[12].weights.validate()
    assert np.bincount(network[12].weights.indices).tolist() == [32] * 65536


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"neurons": 0}, "neurons is 0"),
        ({"neurons": 1 << 31}, "2147483648"),
        ({"neurons": 1000}, "multiple of the Kronecker factor"),
        ({"neurons": 48}, r"product 2, .*3 base nodes.*give radices whose product it is"),
        ({"radices": (2, 3)}, r"\[2, 3\] \(product 6.* 64 base nodes"),
        ({"radices": (-8, -8)}, "a radix is -8"),
        ({"weight": math.nan}, "nan"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        radixnet(**{"neurons": 1024, "layers": 3, **arguments})  # type: ignore[arg-type]


def test_a_network_beyond_memory_is_refused_before_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda: 10**10)
    message = r"a network of 1,048,576 neurons and 1,000,000 layers needs [\d,.]+ GB of memory"
    with pytest.raises(ResourceError, match=message):
        radixnet(1 << 20, 10**6)


def test_the_official_network_is_the_same_up_to_one_row_permutation_a_cycle(official_folder: Path) -> None:
    official: dict[int, np.ndarray] = {}
    with tarfile.open(official_folder / "neuron1024.tar.gz") as archive:
        for member in archive:
            number = int(member.name.rpartition("-l")[2].partition(".")[0]) if member.isfile() else 0
            if 1 <= number <= 18:
                file = archive.extractfile(member)
                triples = np.loadtxt(file)
                official[number] = np.zeros((1024, 1024), bool)
                official[number][triples[:, 0].astype(int) - 1, triples[:, 1].astype(int) - 1] = triples[:, 2] == 0.0625
    made = [layer.weights.to_scipy().toarray() == np.float32(0.0625) for layer in radixnet(1024, 18)]
    for number in range(1, 7):
        np.testing.assert_array_equal(made[number - 1], official[number])
    for first, last in pairwise((6, 12, 18)):
        theirs = [official[number] for number in range(first + 1, last + 1)]
        assert not np.array_equal(theirs[0], made[0]), "the official cycle is permuted, too"
        np.testing.assert_array_equal(rows_in_order(made[first:last]), rows_in_order(theirs))
