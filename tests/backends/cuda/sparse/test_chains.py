"""Chains of layers, ready to run, on a GPU."""

from itertools import pairwise

import numpy as np
import pytest
from oracle import expected
from sparse_layers import sparse_layer

from sparsenn.backends.chains import SparseProblem
from sparsenn.backends.cuda.sparse.chunks import chain as chunks
from sparsenn.backends.cuda.sparse.resident import chain as resident
from sparsenn.backends.cuda.sparse.rows import active_rows, spread
from sparsenn.backends.cuda.sparse.stack import upload
from sparsenn.formats import CSR, from_dense
from sparsenn.network import Network

KERNELS = {"resident": resident.RESIDENT, "chunks": chunks.CHUNKS}


def layers_of(rng, widths, activation=None, bias=-0.2):
    made = []
    for inputs, outputs in pairwise(widths):
        matrix = (rng.normal(size=(inputs, outputs)) * (rng.random((inputs, outputs)) < 0.1)).astype(np.float32)
        given = np.where(rng.random(outputs) < 0.1, -0.0, bias).astype(np.float32)
        made.append(sparse_layer(matrix, given, activation))
    return made


def rows_of(rng, form, rows, width):
    mask = rng.random((rows, width)) < 0.2
    mask[::5] = False
    if rows > 8:
        mask[7] = mask[3]
    values = np.float32(0.75) if form == "iso" else rng.normal(size=mask.shape).astype(np.float32)
    dense = np.where(mask, values, np.float32(0)).astype(np.float32)
    return dense, dense if form == "dense" else from_dense(dense)


def placed(library, rows):
    if not isinstance(rows, CSR):
        return library.asarray(rows)
    return CSR(rows.shape, *(library.asarray(array) for array in (rows.indptr, rows.indices, rows.values)))


def ready(library, kernel, layers, rows, form, *, droppable_from=0, deduplicate=True):
    stack = upload(0, layers, [np.ones(layer.outputs, np.int64) for layer in layers])
    return KERNELS[kernel].prepare(stack, SparseProblem(rows, form, droppable_from, deduplicate))


def check(chain, library, rng, layers, form, rows, counting=False):
    """Run new rows; returns the outputs, once they are found to be right."""
    dense, features = rows_of(rng, form, rows, layers[0].inputs)
    left = chain.run(placed(library, features), counting)
    found = library.asnumpy(spread(left, None))
    right, error = expected(Network(tuple(layers)), from_dense(dense))
    assert found.shape == right.shape
    assert np.all(np.abs(found - right) <= error)
    assert np.array_equal(library.asnumpy(active_rows(left)), found.any(axis=1))
    assert np.array_equal(library.asnumpy(spread(left, library.asarray(np.int32([5, 0, 5])))), found[:, [5, 0, 5]])
    return found


@pytest.mark.gpu
@pytest.mark.parametrize("widths", [(500, 600, 400), (500, 2000, 16, 700, 100, 1500, 64, 33)], ids=str)
def test_parts_change_no_bit_on_a_gpu(widths, monkeypatch, rng, cupy):
    layers = layers_of(rng, widths)
    rows = cupy.asarray(rng.normal(size=(40_000, widths[0])).astype(np.float32))

    def run(chain):
        return cupy.asnumpy(chain.run(rows, False).features)

    monkeypatch.setattr(chunks, "SLICES", 1)
    whole = run(ready(cupy, "chunks", layers, len(rows), "dense"))
    for slices in (2, 3):
        monkeypatch.setattr(chunks, "SLICES", slices)
        chain = ready(cupy, "chunks", layers, len(rows), "dense")
        assert all(np.array_equal(run(chain).view(np.int32), whole.view(np.int32)) for _ in range(20))


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("form", ["dense", "csr", "iso"])
@pytest.mark.parametrize("widths", [(100, 127, 60, 33), (1500, 1100, 130, 1025, 300, 1024, 7)], ids=str)
@pytest.mark.parametrize("capacity", [1, 40, 3000])
def test_chains_on_a_gpu(kernel, form, widths, capacity, rng, cupy):
    layers = layers_of(rng, widths)
    chain = ready(cupy, kernel, layers, capacity, form)
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    for number, rows in enumerate((capacity, 1, capacity - 1, 0, capacity)):
        with streams[number % 2]:
            check(chain, cupy, rng, layers, form, rows, counting=number == 2)
            if number == 2:
                assert len(chain.counts()) == len(layers)
