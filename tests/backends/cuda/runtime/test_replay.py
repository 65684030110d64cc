"""Work of many launches, replayed as a graph by sessions on a GPU."""

import numpy as np
import pytest
import scipy.sparse as sp

from sparsenn import (
    Add,
    Concatenate,
    Conv2d,
    Flatten,
    Linear,
    MaxPool2d,
    Multiply,
    Network,
    Node,
    ReLU,
    Session,
    SparseLinear,
)
from sparsenn.backends.cuda.runtime.device import cupy


def networks():
    """Of many launches: convolutions with branches, sparse layers with branches, dense layers."""
    rng = np.random.default_rng(3)

    def conv(channels, filters, activation=None):
        weights = rng.normal(size=(filters, channels, 3, 3)) / np.sqrt(9 * channels)
        return Conv2d(weights.astype(np.float32), None, activation or ReLU(), padding=1)

    def sparse(inputs, outputs):
        matrix = sp.random(inputs, outputs, 0.05, "csc", np.float32, rng)
        return SparseLinear.from_scipy(matrix, rng.normal(size=outputs).astype(np.float32))

    images = Network(
        (
            conv(3, 8),
            conv(8, 8),
            Node(Add(ReLU()), (1, 2)),
            MaxPool2d(2),
            Node(conv(8, 4), (4,)),
            Node(conv(8, 4), (4,)),
            Node(Concatenate(), (5, 6)),
            Flatten(),
            Linear(rng.normal(size=(8 * 64, 10)).astype(np.float32)),
        ),
        (3, 16, 16),
    )
    branches = Network((sparse(200, 300), sparse(300, 300), Node(sparse(300, 300), (1,)), Node(Add(), (2, 3))))
    gates = Network((conv(3, 8), MaxPool2d(16), Node(Multiply(), (2, 1)), Node(Multiply(ReLU()), (1, 3))), (3, 16, 16))
    dense = Network(tuple(Linear(rng.normal(size=(500, 500)).astype(np.float32) / 20) for _ in range(6)))
    return {
        "images": images,
        "branches": branches,
        "gates": gates,
        "sparse": Network((sparse(200, 200),) * 3),
        "dense": dense,
    }


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["float32", "float16"])
@pytest.mark.parametrize("name", list(networks()))
def test_replays_have_the_bits_of_the_first_call(name, precision, rng):
    cp, network = cupy(), networks()[name]
    session = Session(network, device="cuda", precision=precision)
    stream = cp.cuda.Stream(non_blocking=True)
    for rows in (1, 100, 37):
        features = [cp.asarray(rng.normal(size=(rows, network.inputs)).astype(np.float32)) for _ in range(6)]
        cp.cuda.Device().synchronize()
        first = [Session(network, device="cuda", precision=precision)(each) for each in features]
        found = [session(each) for each in features[:2]]
        cp.get_default_memory_pool().free_all_blocks()
        others = [cp.full(size, cp.nan, np.float32) for size in (100, 10_000, 1_000_000) for _ in range(20)]
        found.append(session(features[2]))
        with stream:
            found += [session(each) for each in features[3:]]
        stream.synchronize()
        assert all(bool(cp.isnan(other).all()) for other in others), "graphs write to their own memory"
        for one, other in zip(found, first, strict=True):
            assert bool((one == other).all())
        from_host = session(cp.asnumpy(features[0]))  # whose hidden values are looked at in half precision
        np.testing.assert_allclose(from_host, cp.asnumpy(first[0]), rtol=0, atol=0 if precision == "float32" else 1e-2)
        with stream:
            session(features[0])  # what a stream captures may not wait for another one
            stream.begin_capture()
            captured = session(features[0])
            graph = stream.end_capture()
            graph.launch(stream)
        stream.synchronize()
        assert bool((captured == first[0]).all())
