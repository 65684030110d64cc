"""Calls on arrays that stay where they are."""

import numpy as np
import pytest
import scipy.sparse as sp

from sparsenn import Network, ReLU, Session
from sparsenn.errors import InputError, ShapeError, UsageError


@pytest.fixture
def network(rng):
    weights = [sp.random(30, 30, 0.3, format="csc", dtype=np.float32, random_state=seed) for seed in range(2)]
    return Network.from_scipy(weights, bias=0.1, activation=ReLU())


@pytest.mark.parametrize("out", [(), (np.zeros((3, 30), np.float32),)], ids=["its own", "the caller's"])
def test_a_call_reads_and_writes_the_same_arrays(network, rng, out):
    session, rows = Session(network, device="cpu"), rng.random((3, 30), dtype=np.float32)
    call = session.bind(rows, *out)
    assert call.inputs is rows
    for _ in range(2):
        rows[:] = rng.random(rows.shape)
        assert call() is call.outputs is (out[0] if out else call.outputs)
        assert np.array_equal(call.outputs, session(rows))


@pytest.mark.parametrize(
    "inputs",
    [np.ones((2, 30)), np.ones((30, 2), np.float32).T, [[1.0] * 30], sp.csr_matrix(np.ones((2, 30), np.float32))],
    ids=["float64", "by column", "list", "sparse"],
)
def test_what_would_be_copied_is_refused(network, inputs):
    with pytest.raises(UsageError, match="bound"):
        Session(network, device="cpu").bind(inputs)


def test_an_array_that_cannot_take_the_outputs_is_refused(network):
    session, rows, fixed = Session(network, device="cpu"), np.ones((2, 30), np.float32), np.zeros((2, 30), np.float32)
    fixed.flags.writeable = False
    for out, error, message in (
        (np.zeros((3, 30), np.float32), ShapeError, "out has the shape"),
        (np.zeros((2, 30)), UsageError, "float64"),
        (np.zeros((30, 2), np.float32).T, UsageError, "row-major"),
        (fixed, UsageError, "written"),
    ):
        with pytest.raises(error, match=message):
            session.bind(rows, out)


def test_rows_on_the_host_are_checked_in_each_call_until_the_session_is_closed(network):
    rows, session = np.ones((2, 30), np.float32), Session(network, device="cpu")
    call = session.bind(rows)
    rows[1, 3] = np.nan
    with pytest.raises(InputError, match="nan"):
        call()
    session.close()
    with pytest.raises(UsageError, match="closed"):
        call()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_graph_computes_what_a_call_does(network, dtype, rng, cupy):
    session = Session(network, device="cuda", precision="float16" if dtype == np.float16 else "float32")
    rows = cupy.asarray(rng.random((5, 30)).astype(dtype))
    out = cupy.zeros((5, 30), session(rows).dtype)
    plain, given = session.bind(rows), session.bind(rows, out)
    assert given.outputs is out
    for _ in range(3):
        rows[:] = cupy.asarray(rng.random((5, 30)).astype(dtype))
        expected = session(rows)
        assert (plain() == expected).all()
        assert (given() == expected).all()


@pytest.mark.gpu
def test_tensors_are_bound_without_a_copy(network):
    torch = pytest.importorskip("torch")
    session, rows = Session(network, device="cuda"), torch.rand(4, 30, device="cuda")
    call, side = session.bind(rows), torch.cuda.Stream()
    first = call()
    assert isinstance(first, torch.Tensor)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):  # which calls follow, too
        rows.mul_(2)
        call()
        assert torch.equal(first, session(rows))
