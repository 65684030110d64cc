"""The forms in which a caller may have the inputs, what becomes of the outputs, and what is no input."""

import numpy as np
import pytest
import scipy.sparse as sp
from sessions import same

import sparsenn
from sparsenn import Session
from sparsenn.backends import SparseRows
from sparsenn.errors import InputError, MatrixError, ShapeError, UsageError
from sparsenn.formats import CSR, from_dense
from sparsenn.layers import Identity, Linear, ReLU, SparseLinear
from sparsenn.network import Network

DEVICES = ["cpu", "reference"]
ROWS, WIDTH = 30, 20


class Speaking:
    """Speaks DLPack and nothing else."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **how):
        return self.array.__dlpack__(**how)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class Elsewhere(Speaking):
    """Says that it is on a GPU."""

    def __dlpack_device__(self):
        return 2, 0


class Sparser(sp.csr_array):
    """A matrix of a type of the caller's own."""


@pytest.fixture
def rows(rng):
    """Small whole numbers, which every type holds; among them rows of zeros."""
    return rng.integers(0, 4, (ROWS, WIDTH)) * (rng.random((ROWS, WIDTH)) < 0.3) * (rng.random((ROWS, 1)) < 0.8)


@pytest.fixture
def kinds(rng):
    """Networks of sparse, of dense and of both kinds of layers."""
    sparse = SparseLinear.from_scipy(sp.random(WIDTH, 16, 0.3, format="csc", random_state=rng, dtype=np.float32), -0.1)
    dense = Linear(rng.normal(size=(16, 5)), 0.1, Identity())
    first = Linear(rng.normal(size=(WIDTH, 16)), 0.1, ReLU())
    return {"sparse": Network((sparse,)), "dense": Network((first, dense)), "mixed": Network((sparse, dense))}


def expected_of(network, rows):
    values = np.asarray(rows, np.float64)
    for layer in network:
        stored = layer.weights if isinstance(layer, Linear) else layer.weights.to_scipy().toarray()
        values = layer.activation(values @ stored.astype(np.float64) + layer.bias_vector().astype(np.float64))
    return values


def assert_near(found, expected):
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


# ---- Dense rows -----------------------------------------------------------------------------------------------------

TYPES = [
    *(np.bool_, np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64),
    *(np.float16, np.float32, np.float64, np.longdouble, ">f4", ">i2"),
]


def strided(rows):
    wide = np.zeros((2 * rows.shape[0], 3 * rows.shape[1]), rows.dtype)
    wide[::2, ::3] = rows
    return wide[::2, ::3]


def locked(rows):
    rows = rows.copy()
    rows.flags.writeable = False
    return rows


ORDERS = {
    "row-major": np.ascontiguousarray,
    "column-major": np.asfortranarray,
    "strided": strided,
    "upside down": lambda rows: rows[::-1].copy()[::-1],
    "read-only": locked,
    "matrix": lambda rows: rows.view(np.matrix),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", TYPES, ids=str)
@pytest.mark.parametrize("order", ORDERS)
def test_arrays_of_every_type_and_order(kinds, rows, device, kind, order):
    given_rows = ORDERS[order](rows.astype(kind))
    for network in kinds.values():
        session = Session(network, device=device)
        found, result = session(given_rows), session.run(given_rows)
        assert isinstance(found, np.ndarray)
        assert found.dtype == (np.float64 if device == "reference" else np.float32)
        expected = expected_of(network, given_rows)
        assert_near(found, expected)
        assert_near(result.dense, expected)
        assert np.array_equal(result.categories, np.flatnonzero(found.any(axis=1)))
        assert result.plan.density is None


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("count", [0, 1, ROWS])
def test_lists_and_speakers_of_dlpack(kinds, rows, device, count):
    rows = rows[:count].astype(np.float32)
    for network in kinds.values():
        session = Session(network, device=device)
        for given_rows in (rows.tolist(), tuple(map(tuple, rows.tolist())), list(rows), Speaking(rows)):
            if count or not isinstance(given_rows, list | tuple):
                found = session(given_rows)
                assert isinstance(found, np.ndarray)
                assert_near(found, expected_of(network, rows))


# ---- Sparse rows ----------------------------------------------------------------------------------------------------


def shuffled(rows):
    """CSR whose entries are in falling order of columns."""
    matrix = sp.csr_array(rows.astype(np.float32))
    for first, last in zip(matrix.indptr, matrix.indptr[1:], strict=False):
        matrix.indices[first:last] = matrix.indices[first:last][::-1].copy()
        matrix.data[first:last] = matrix.data[first:last][::-1].copy()
    matrix.has_sorted_indices = False
    return matrix


def doubled(rows):
    """CSR in which every entry is there twice, as two halves of it."""
    row, column = np.nonzero(rows)
    order = np.repeat(np.arange(row.size), 2)
    values = rows[row, column].astype(np.float32)[order] / 2
    indptr = np.concatenate([[0], np.cumsum(2 * np.count_nonzero(rows, axis=1))])
    return sp.csr_array((values, column[order], indptr), shape=rows.shape)


def with_long_indices(rows):
    matrix = sp.csr_array(rows.astype(np.float32))
    return sp.csr_array((matrix.data, matrix.indices.astype(np.int64), matrix.indptr.astype(np.int64)), rows.shape)


def with_stored_zeros(rows):
    """All positions are stored."""
    return sp.csr_array(
        (rows.astype(np.float32).ravel(), np.tile(np.arange(WIDTH), ROWS), np.arange(ROWS + 1) * WIDTH), rows.shape
    )


SPARSE = {
    **{f"{name}_{kind}": getattr(sp, f"{name}_{kind}") for name in ("csr", "csc", "coo", "bsr", "lil", "dok", "dia")
       for kind in ("matrix", "array")},
    "own": Sparser,
    "unsorted": shuffled,
    "given twice": doubled,
    "long indices": with_long_indices,
    "stored zeros": with_stored_zeros,
    "part of rows": lambda rows: sp.csr_array(np.concatenate([rows, rows]))[ROWS:],
    "bool": lambda rows: sp.csr_array(rows.astype(bool)),
    "int8": lambda rows: sp.csr_array(rows.astype(np.int8)),
    "uint64": lambda rows: sp.csr_array(rows.astype(np.uint64)),
    "float64": lambda rows: sp.csc_array(rows.astype(np.float64)),
}  # fmt: skip


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("form", SPARSE)
def test_scipy_matrices_of_every_kind(kinds, rows, device, form):
    rows = rows.astype(bool) if form == "bool" else rows
    given_rows = SPARSE[form](rows)
    before = given_rows.copy()
    for network in kinds.values():
        session = Session(network, device=device)
        expected = expected_of(network, rows)
        found = session(given_rows)
        assert sp.issparse(found)
        assert found.format == "csr"
        assert_near(found.toarray(), expected)
        assert_near(session(given_rows, form="dense"), expected)
        result = session.run(given_rows)
        assert_near(result.dense, expected)
        assert result.plan.density == pytest.approx(given_rows.tocsr().nnz / rows.size)
    assert type(given_rows) is type(before)
    assert np.array_equal(given_rows.toarray(), before.toarray())
    if hasattr(before, "indices"):
        assert np.array_equal(given_rows.indices, before.indices)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("value", [1.0, 2.5, None], ids=str)
def test_csr_of_one_value_and_of_many(kinds, rows, device, value):
    full = rows.astype(np.float32) if value is None else (rows > 0) * np.float32(value)
    given_rows = from_dense(full)
    assert given_rows.iso == (value is not None)
    for network in kinds.values():
        session = Session(network, device=device)
        found = session(given_rows)
        assert isinstance(found, CSR)
        found.validate()
        assert_near(found.to_scipy().toarray(), expected_of(network, full))
        assert np.array_equal(found.to_scipy().toarray(), session(given_rows, form="dense"))
        assert session(full.astype(np.float64)).dtype == found.values.dtype
        for first, last in ((0, 0), (3, 4), (5, ROWS)):
            part = session(given_rows.slice_groups(first, last), form="dense")
            assert_near(part, expected_of(network, full[first:last]))


# ---- The form of the outputs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
def test_outputs_come_in_the_form_asked_for_by_default_that_of_the_rows(kinds, rows, device):
    for network in kinds.values():
        session = Session(network, device=device)
        dense = session(rows)
        for form in ("coo", "", 1, True):
            with pytest.raises(UsageError, match=f"outputs are dense or csr, not {form!r}"):
                session(rows, form=form)
        for given_rows, sparse_type in ((rows, CSR), (from_dense(rows), CSR), (sp.coo_array(rows), sp.csr_array)):
            assert isinstance(session(given_rows, form="csr"), sparse_type)
            assert isinstance(session(given_rows, form="dense"), np.ndarray)
            outputs = session(given_rows, form="csr")
            full = outputs.to_scipy().toarray() if isinstance(outputs, CSR) else outputs.toarray()
            assert_near(full, dense)
            assert type(session(given_rows)) is (np.ndarray if given_rows is rows else type(outputs))


# ---- What is no input -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (np.zeros((3, 19)), ShapeError, "the inputs have 19 columns; layer 1 takes 20"),
        (sp.csr_matrix((3, 21)), ShapeError, "the inputs have 21 columns; layer 1 takes 20"),
        (np.zeros(19), MatrixError, r"shape \(19,\); a matrix of samples has two dimensions: \(rows, 20\)"),
        (np.zeros((1, 2, 20)), MatrixError, r"shape \(1, 2, 20\)"),
        (sp.coo_array(np.zeros(20)), MatrixError, "have 1 dimensions"),
        (sp.coo_array(np.ones((1, 1, 20))), sparsenn.SparseNNError, "dimensions"),
        (np.full((3, 20), 1j), MatrixError, "type complex128; real numbers"),
        (sp.csr_matrix(np.full((3, 20), 1j)), MatrixError, "real numbers"),
        (np.full((3, 20), "1"), MatrixError, "real numbers"),
        (np.full((3, 20), None), MatrixError, "type object; real numbers"),
        ([[1.0] * 20, [1.0] * 19], MatrixError, "no array of numbers"),
        ([["1"] * 20], MatrixError, "no array of numbers"),
        (None, InputError, "the inputs are a NoneType; give a"),
        ("inputs.h5", InputError, "the inputs are a str"),
        (5.0, InputError, "the inputs are a float"),
        pytest.param(Elsewhere(np.ones((2, 20))), UsageError, "the rows are on a GPU: use device cuda", id="elsewhere"),
    ],
    ids=repr,
)
def test_what_is_no_input_is_refused(network, inputs, wrong, error, message):
    session = Session(network, device="cpu")
    expected = session(inputs)
    for run in (session, session.run, session.plan, lambda rows: sparsenn.infer(network, rows, device="cpu")):
        with pytest.raises(error, match=message) as caught:
            run(wrong)
        assert len(str(caught.value).splitlines()) == 1
    assert same(session(inputs), expected)


def csr(indptr, indices, values, width=WIDTH, kind=np.uint16):
    return CSR(
        (len(indptr) - 1, width), np.array(indptr, np.int64), np.array(indices, kind), np.array(values, np.float32)
    )


WRONG = {
    "an index beyond the width": (csr([0, 2], [1, 60_000], [1, 2]), "index 60000 is outside"),
    "the width as an index": (csr([0, 2], [1, WIDTH], [1, 2]), f"index {WIDTH} is outside"),
    "a place twice": (csr([0, 2], [5, 5], [1, 2]), "twice"),
    "falling columns": (csr([0, 2], [6, 5], [1, 2]), "increase"),
    "falling offsets": (csr([0, 2, 1, 2], [5, 6], [1, 2]), "never fall"),
    "offsets beyond the entries": (csr([0, 1, 10**9], [5, 6], [1, 2]), "indptr must rise from 0"),
    "offsets below zero": (csr([0, -1, 2], [5, 6], [1, 2]), "never fall"),
    "a value that is not finite": (csr([0, 1], [5], [np.nan]), "not finite"),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("spoilt", ["coo", "csc", "bsr", "dia", "lil", "csr indptr", "csr indices", "csr data"])
def test_matrices_of_scipy_are_looked_at_before_they_are_converted(network, device, spoilt):
    form, _, array = spoilt.partition(" ")
    matrix = sp.eye_array(4, WIDTH, format="coo", dtype=np.float32).asformat(form)
    if form == "coo":
        matrix.coords[0][1] = 10**8
    elif form == "lil":
        matrix.rows[0] = [10**8]
    elif form == "dia":
        matrix.offsets = matrix.offsets[:0]
    else:
        getattr(matrix, array or "indices")[-1] = np.inf if array == "data" else 10**8
    session = Session(network, device=device)
    for run in (session, session.run):
        with pytest.raises(MatrixError):
            run(matrix)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kernel", ["auto", "panel", "scatter", "rows", "scipy", "sequential"])
@pytest.mark.parametrize("case", WRONG)
def test_csr_that_breaks_its_format_is_refused_before_a_kernel_reads_it(network, device, kernel, case):
    if device == "reference" and kernel != "auto":
        pytest.skip("it has one kernel")
    wrong, message = WRONG[case]
    for session in (Session(network, device=device, kernel=kernel), Session(network, device=device, batch_size=1)):
        for run in (session, session.run):
            with pytest.raises(sparsenn.SparseNNError, match=message):
                run(wrong)


def test_arguments_that_are_swapped_or_of_another_kind(network, inputs):
    for run in (sparsenn.plan, sparsenn.infer):
        with pytest.raises(UsageError, match=r"a CSR; .*sparsenn\.Network"):
            run(inputs, network)


# ---- Rows on a GPU --------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["float32", "tf32", "float16"])
def test_arrays_on_a_gpu_stay_there(kinds, rows, precision, cupy):
    rows = rows.astype(np.float32)
    for network in kinds.values():
        session = Session(network, device="cuda", precision=precision)
        on_host, on_device = session(rows), session(cupy.asarray(rows))
        assert isinstance(on_host, np.ndarray)
        assert isinstance(on_device, cupy.ndarray)
        assert np.array_equal(on_host, cupy.asnumpy(on_device))
        assert np.array_equal(on_host, cupy.asnumpy(session(Speaking(cupy.asarray(rows)))))
        assert np.array_equal(on_host, cupy.asnumpy(session(cupy.asfortranarray(cupy.asarray(rows)))))
        result = session.run(cupy.asarray(rows))
        assert isinstance(result.dense, np.ndarray)
        assert np.array_equal(result.dense, on_host)
        assert result.categories.dtype == np.int64
        allowed = 1e-5 if precision == "float32" else 2e-2
        np.testing.assert_allclose(on_host, expected_of(network, rows), rtol=allowed, atol=allowed)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [np.bool_, np.int8, np.uint16, np.int64, np.float16, np.float64], ids=str)
def test_arrays_of_other_types_on_a_gpu(kinds, rows, kind, cupy):
    given_rows = cupy.asarray(rows.astype(kind))
    for network in kinds.values():
        found = Session(network, device="cuda")(given_rows)
        assert found.dtype == np.float32
        assert_near(cupy.asnumpy(found), expected_of(network, rows.astype(kind)))


@pytest.mark.gpu
def test_half_precision_rows_give_half_precision_outputs_where_kernels_take_them(kinds, rows, cupy):
    given_rows = cupy.asarray(rows, np.float16)
    network = kinds["dense"]
    found = Session(network, device="cuda", precision="float16")(given_rows)
    assert found.dtype == np.float16
    np.testing.assert_allclose(cupy.asnumpy(found), expected_of(network, rows), rtol=2e-2, atol=2e-2)
    assert Session(network, device="cuda")(given_rows).dtype == np.float32


@pytest.mark.gpu
@pytest.mark.parametrize("form", ["csr_matrix", "csc_matrix", "coo_matrix"])
def test_sparse_matrices_on_a_gpu(kinds, rows, form, cupy):
    import cupyx.scipy.sparse

    given_rows = getattr(cupyx.scipy.sparse, form)(cupyx.scipy.sparse.csr_matrix(cupy.asarray(rows, np.float32)))
    for network in kinds.values():
        session = Session(network, device="cuda")
        expected = expected_of(network, rows)
        found = session(given_rows)
        assert cupyx.scipy.sparse.issparse(found) or isinstance(found, CSR)
        dense = session(given_rows, form="dense")
        assert isinstance(dense, cupy.ndarray)
        assert_near(cupy.asnumpy(dense), expected)
        assert_near(session.run(given_rows).dense, expected)
        assert np.array_equal(cupy.asnumpy(dense), session(sp.csr_array(rows.astype(np.float32)), form="dense"))


def test_rows_become_canonical_whatever_lies_behind_their_entries() -> None:
    indptr, indices = np.array([2, 4, 4, 5]), np.array([3, 1, 2, 9, 9])
    for values, last in ((np.array([1.0, 2, 3, 8, 8]), 3), (np.array([5.0]), 5)):
        found = SparseRows((3, 4), indptr, indices, values).canonical()
        assert (found.indptr.tolist(), found.indices.tolist()) == ([0, 2, 2, 3], [1, 3, 2])
        assert found.values.tolist()[-1] == last


@pytest.mark.gpu
@pytest.mark.parametrize("spoilt", ["unsorted", "given twice"])
def test_sparse_matrices_on_a_gpu_need_not_be_canonical(kinds, rows, spoilt, cupy):
    import cupyx.scipy.sparse

    host = {"unsorted": shuffled, "given twice": doubled}[spoilt](rows)
    arrays = cupy.asarray(host.data), cupy.asarray(host.indices, np.int32), cupy.asarray(host.indptr, np.int32)
    given_rows = cupyx.scipy.sparse.csr_matrix(arrays, shape=host.shape)
    for network in kinds.values():
        found = Session(network, device="cuda")(given_rows, form="dense")
        assert_near(cupy.asnumpy(found), expected_of(network, rows))


@pytest.mark.gpu
@pytest.mark.parametrize("case", WRONG)
def test_csr_that_breaks_its_format_is_refused_on_a_gpu(network, case):
    wrong, message = WRONG[case]
    session = Session(network, device="cuda")
    for run in (session, session.run):
        with pytest.raises(sparsenn.SparseNNError, match=message):
            run(wrong)


@pytest.mark.gpu
def test_rows_are_checked_though_those_before_were_sound_and_of_one_value(rng, cupy):
    import cupyx.scipy.sparse

    def on_the_gpu(matrix, **changed):
        arrays = {name: cupy.asarray(getattr(matrix, name)) for name in ("data", "indices", "indptr")}
        for name, (at, number) in changed.items():
            arrays[name][at] = number
        return cupyx.scipy.sparse.csr_matrix(tuple(arrays.values()), shape=matrix.shape)

    layers = [sp.random(300, 300, 0.05, format="csc", random_state=rng, dtype=np.float32) for _ in range(30)]
    network = Network(tuple(SparseLinear.from_scipy(layer, -0.05) for layer in layers))
    ones = sp.csr_array(rng.random((2000, 300)) < 0.2).astype(np.float32)
    several = ones.copy()
    several.data[:] = rng.integers(1, 5, several.nnz)
    session, expected = Session(network, device="cuda", kernel="resident"), Session(network, device="cpu")
    for _ in range(3):
        for rows in (ones, ones, several, several, ones):
            assert np.array_equal(session.run(on_the_gpu(rows)).categories, expected.run(rows).categories)
        for name, change, told in (
            ("indices", (7, 300), "index 300 is outside"),
            ("indptr", (3, 1 << 30), "row 2: indptr"),
            ("data", (9, np.nan), "not finite"),
        ):
            with pytest.raises(MatrixError, match=told):
                session.run(on_the_gpu(ones, **{name: change}))
        turned = ones.copy()
        turned.indices[: turned.indptr[1]] = turned.indices[: turned.indptr[1]][::-1]
        assert np.array_equal(session.run(on_the_gpu(turned)).categories, expected.run(ones).categories)
        assert np.array_equal(session(on_the_gpu(ones), form="dense").get(), session.run(ones).dense)


@pytest.mark.gpu
def test_calls_on_several_streams_follow_each_other(kinds, rng, cupy):
    rows = cupy.asarray(rng.random((50_000, WIDTH)), np.float32)
    for network in kinds.values():
        session = Session(network, device="cuda")
        expected = cupy.asnumpy(session(rows))
        streams, found = [cupy.cuda.Stream(non_blocking=True) for _ in range(4)], []
        cupy.cuda.Device().synchronize()
        for stream in streams * 4:
            with stream:
                found.append(session(rows + 0))
        cupy.cuda.Device().synchronize()
        assert all(np.array_equal(cupy.asnumpy(outputs), expected) for outputs in found)


@pytest.mark.gpu
@pytest.mark.parametrize("place", ["cpu", "cuda"])
def test_tensors_of_pytorch_come_back_as_such(kinds, rows, place):
    torch = pytest.importorskip("torch")
    tensor = torch.as_tensor(rows.astype(np.float32), device=place)
    for network in kinds.values():
        found = Session(network, device="cuda")(tensor)
        assert isinstance(found, torch.Tensor)
        assert found.device.type == place
        assert_near(found.cpu().numpy(), expected_of(network, rows))


@pytest.mark.gpu
def test_rows_on_a_gpu_are_refused_elsewhere(kinds, rows, cupy):
    for device in DEVICES:
        with pytest.raises(UsageError, match="the rows are on a GPU"):
            Session(kinds["sparse"], device=device)(cupy.asarray(rows))


class Unreadable(Speaking):
    """An array of another library that does not let others read it, as PyTorch's of rows that require gradients."""

    shape, dtype = (2, 4), np.dtype(np.float32)

    def __dlpack__(self, **_):
        raise BufferError("use detach()")


def test_arrays_that_cannot_be_read_are_refused_in_one_line():
    network = Network((SparseLinear.from_scipy(sp.eye_array(4), 0.0),))
    with pytest.raises(InputError, match=r"Unreadable, which cannot be read: use detach\(\)"):
        Session(network, device="cpu")(Unreadable(np.ones((2, 4), np.float32)))
