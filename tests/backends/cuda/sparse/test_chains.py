"""Chains of layers, ready to run: on an emulated device, and where there is a GPU."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from device_emulation import emulated_device
from oracle import expected

from sparsenn.backends.chains import SparseProblem
from sparsenn.backends.cuda.sparse import row_slices
from sparsenn.backends.cuda.sparse.chunks import chain as chunks
from sparsenn.backends.cuda.sparse.chunks.tiling import stage_tilings
from sparsenn.backends.cuda.sparse.resident import chain as resident
from sparsenn.backends.cuda.sparse.resident import chunk_stages, packed
from sparsenn.backends.cuda.sparse.rows import active_rows, spread
from sparsenn.backends.cuda.sparse.stack import upload
from sparsenn.formats import CSR, from_dense
from sparsenn.layers import Identity, ReLU, SparseLinear
from sparsenn.network import Network

WIDTHS = (100, 127, 60, 60, 90, 60, 40, 33)
KERNELS = {"resident": resident.RESIDENT, "chunks": chunks.CHUNKS}


def layers_of(rng, widths, activation=None, bias=-0.2):
    made = []
    for inputs, outputs in pairwise(widths):
        matrix = (rng.normal(size=(inputs, outputs)) * (rng.random((inputs, outputs)) < 0.1)).astype(np.float32)
        given = np.where(rng.random(outputs) < 0.1, -0.0, bias).astype(np.float32)
        made.append(SparseLinear.from_scipy(from_dense(matrix).to_scipy(), given, activation or ReLU()))
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


@pytest.fixture
def emulated(monkeypatch):
    with emulated_device(monkeypatch) as device:
        yield device


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("form", ["dense", "csr", "iso"])
@pytest.mark.parametrize(("capacity", "multiprocessors"), [(3, 24), (40, 2)], ids=["all at once", "many"])
def test_a_chain_takes_any_rows_up_to_so_many(kernel, form, capacity, multiprocessors, rng, emulated):
    import cupy

    emulated.machine = replace(emulated.machine, multiprocessors=multiprocessors)
    layers = layers_of(rng, WIDTHS)
    chain = ready(cupy, kernel, layers, capacity, form)
    for rows in (capacity, 1, 0, capacity - 1):
        check(chain, cupy, rng, layers, form, rows)
    assert chain.nbytes > 0


def test_kernels_and_grouping_change_no_bit(rng, emulated):
    import cupy

    layers = layers_of(rng, WIDTHS[:4], Identity())
    answers = set()
    for kernel, form, droppable_from, deduplicate in (
        ("resident", "iso", 0, True),
        ("resident", "csr", 99, False),
        ("resident", "dense", 0, False),
        ("chunks", "iso", 99, False),
        ("chunks", "dense", 99, False),
    ):
        chain = ready(cupy, kernel, layers, 40, form, droppable_from=droppable_from, deduplicate=deduplicate)
        same = np.random.default_rng(5)
        _, features = rows_of(same, "iso", 40, WIDTHS[0])
        given = features.to_scipy().toarray() if form == "dense" else features
        left = chain.run(placed(cupy, given), False)
        answers.add(cupy.asnumpy(spread(left, None)).tobytes())
    assert len(answers) == 1


@pytest.mark.parametrize("kernel", KERNELS)
def test_what_was_counted(kernel, rng, emulated):
    import cupy

    layers = layers_of(rng, WIDTHS)
    chain = ready(cupy, kernel, layers, 40, "iso")
    check(chain, cupy, rng, layers, "iso", 40)
    found = check(chain, cupy, rng, layers, "iso", 30, counting=True)
    counts = chain.counts()
    assert len(counts) == len(layers)
    assert counts[0].rows == 30
    assert (counts[-1].active_inputs, counts[-1].nonzeros) == (found.any(axis=1).sum(), np.count_nonzero(found))


def test_a_run_on_another_stream_waits_for_the_one_before(rng, emulated):
    import cupy

    layers = layers_of(rng, WIDTHS[:3])
    chain = ready(cupy, "chunks", layers, 5, "dense")
    first, second = cupy.cuda.Stream(), cupy.cuda.Stream()
    for stream in (first, first, second, first):
        with stream:
            check(chain, cupy, rng, layers, "dense", 5)
    assert emulated.waits == [(second.ptr, first.ptr), (first.ptr, second.ptr)]


def test_a_run_launches_each_layer_once(rng, emulated):
    import cupy

    chain = ready(cupy, "chunks", layers_of(rng, WIDTHS[:3]), 5, "dense")
    emulated.launches.clear()
    chain.run(cupy.asarray(np.ones((5, WIDTHS[0]), np.float32)), False)
    assert emulated.launches == ["rows_to_tiles", "gather_chunks", "gather_chunks", "tiles_to_rows"]


@pytest.mark.parametrize("turned", [False, True], ids=["last part first", "first part first"])
@pytest.mark.parametrize("form", ["dense", "csr"])
def test_parts_keep_out_of_each_others_rows(form, turned, rng, emulated, monkeypatch):
    """A part goes through all layers before the next one begins: nothing is where that has its rows."""
    import cupy

    cut = row_slices.chunks
    if turned:
        monkeypatch.setattr(row_slices, "chunks", lambda *given: cut(*given)[::-1])
    layers = layers_of(rng, (100, 300, 40, 33, 200, 20, 10))
    chain = ready(cupy, "chunks", layers, 600, form)
    emulated.launches.clear()
    for rows in (600, 400, 33, 0):
        check(chain, cupy, rng, layers, form, rows)
    assert emulated.launches.count("gather_chunks") == (2 + 2 + 1) * len(layers), "600 and 400 rows go in two slices"
    check(chain, cupy, rng, layers, form, 600, counting=True)


@pytest.mark.gpu
@pytest.mark.parametrize("widths", [(500, 600, 400), (500, 2000, 16, 700, 100, 1500, 64, 33)], ids=str)
def test_parts_change_no_bit_on_a_gpu(widths, monkeypatch, rng):
    import cupy

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
def test_chains_on_a_gpu(kernel, form, widths, capacity, rng):
    import cupy

    layers = layers_of(rng, widths)
    chain = ready(cupy, kernel, layers, capacity, form)
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    for number, rows in enumerate((capacity, 1, capacity - 1, 0, capacity)):
        with streams[number % 2]:
            check(chain, cupy, rng, layers, form, rows, counting=number == 2)
            if number == 2:
                assert len(chain.counts()) == len(layers)


def test_stages_are_laid_out_anew_where_rows_are_best_cut_otherwise(rng, emulated):
    layers = layers_of(rng, WIDTHS[:3])
    network = packed.pack_network(upload(0, layers, [np.ones(layer.outputs, np.int64) for layer in layers]).layers)
    sizes = [(layer.inputs, layer.outputs, layer.edges) for layer in layers]
    found, tilings = {}, {}
    for rows in (40, 44, 1000):
        (found[rows],) = chunk_stages.laid_out(network, [(0, 2)], rows)
        tilings[rows] = stage_tilings(rows, sizes, emulated.machine)
        assert [weights.tiling.groups for weights in found[rows].weights] == [each.groups for each in tilings[rows]]
    assert tilings[40] == tilings[44] != tilings[1000]
    assert found[40] is found[44] is not found[1000]
