"""Several sessions that share rows: the bits of one, errors and interrupts of all, and what may be asked for."""

import pickle
import threading
from importlib import import_module

import numpy as np
import pytest
import scipy.sparse as sp
from sessions import altered, same

from sparsenn import Linear, Network, Session, Sessions
from sparsenn.backends import gpus
from sparsenn.backends.cpu import CPUBackend
from sparsenn.distributed import devices as devices_module
from sparsenn.distributed.devices import device_names
from sparsenn.errors import DeviceError, InputError, OutOfMemoryError, UsageError
from sparsenn.formats import CSR, from_dense
from sparsenn.layers import Identity, ReLU
from sparsenn.structure.merging import merge_equal_outputs


def scattered(rng, rows, width, density=0.3):
    return sp.random(rows, width, density, format="csr", random_state=rng, dtype=np.float32)


@pytest.fixture
def network(rng):
    weights = [scattered(rng, 48, 48, 0.2) * np.float32(0.4) for _ in range(6)]
    return Network.from_scipy(weights, -0.01, ReLU(clip=32))


@pytest.fixture
def rows(rng):
    return from_dense((rng.random((500, 48)) < 0.2).astype(np.float32))


@pytest.fixture
def small_pieces(monkeypatch):
    """Pieces as many rows of a test make, however little there is to compute."""
    monkeypatch.setattr(devices_module, "LEAST_ROWS", 20)
    monkeypatch.setattr(devices_module, "LEAST_SECONDS", 1e-12)


def alone(network, device="cpu", **options):
    """One session, which gives a row the same bits whatever rows come with it, as products of a library need not."""
    return Session(network, device=device, reproducible=True, **options)


def several(network, count, device="cpu", **options):
    """So many such sessions on one device, which count as so many devices."""
    first = alone(network, device, **options)
    return Sessions.of([first, *(first.on(device) for _ in range(count - 1))])


# ---- The same bits ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("count", [1, 2, 3, 7])
@pytest.mark.parametrize("batch_size", [None, 13])
def test_results_do_not_depend_on_the_number_of_devices(network, rows, small_pieces, device, count, batch_size):
    one = alone(network, device).run(rows)
    found = several(network, count, device, batch_size=batch_size).run(rows)
    assert same(found.outputs, one.outputs)
    assert np.array_equal(found.categories, one.categories)
    assert found.dense.tobytes() == one.dense.tobytes()
    assert found.inputs == one.inputs == 500
    for name in ("layer", "kernel", "active_rows", "nonzeros"):
        assert len({tuple(getattr(layer, name) for layer in result.statistics) for result in (found, one)}) == 1


def as_bytes(outputs):
    dense = outputs if isinstance(outputs, np.ndarray) else outputs.to_scipy() if isinstance(outputs, CSR) else outputs
    return (dense if isinstance(dense, np.ndarray) else dense.toarray()).tobytes()


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_calls_return_what_one_session_returns(network, rows, small_pieces, device, count):
    one, many = alone(network, device), several(network, count, device)
    for given in (rows.to_scipy(), rows.to_scipy().toarray(), rows, rows.to_scipy().toarray().tolist()):
        right, found = one(given), many(given)
        assert type(found) is type(right)
        assert as_bytes(found) == as_bytes(right)
    dense = many(rows.to_scipy(), form="dense")
    assert dense.tobytes() == one(rows.to_scipy(), form="dense").tobytes()


def test_no_rows_and_fewer_rows_than_devices(network, rows):
    for count in (0, 1, 2):
        part = rows.slice_groups(0, count)
        found = several(network, 4).run(part)
        assert found.inputs == count
        assert same(found.outputs, alone(network).run(part).outputs)
        assert several(network, 4)(part).shape == (count, 48)


def test_named_inputs_and_outputs(network, rows, small_pieces):
    named = Network(network.nodes, named_inputs={"a": (8,), "b": (8, 5)}, named_outputs={"c": (40,), "d": (8, 1)})
    dense = rows.to_scipy().toarray()
    inputs = {"a": dense[:, :8], "b": dense[:, 8:].reshape(-1, 8, 5)}
    expected = alone(network)(dense)
    for count in (1, 3):
        sessions = several(named, count)
        for found in (sessions(inputs), sessions.run(inputs).by_name):
            assert found["c"].tobytes() == expected[:, :40].tobytes()
            assert found["d"].tobytes() == expected[:, 40:].tobytes()


@pytest.mark.gpu
def test_all_gpus_give_the_bits_of_one(network, rows, small_pieces):
    if len(gpus()) < 2:
        pytest.skip("there is one GPU")
    one = alone(network, "cuda:0").run(rows)
    with Sessions(network, "all", reproducible=True) as sessions:
        for _ in range(3):
            found = sessions.run(rows)
            assert same(found.outputs, one.outputs)
            assert sessions(rows.to_scipy().toarray()).tobytes() == one.dense.tobytes()


# ---- What is shared --------------------------------------------------------------------------------------------------


def test_equal_outputs_are_looked_for_once(network, monkeypatch):
    calls, real = [], merge_equal_outputs
    module = import_module("sparsenn.engine.compiled_network")
    monkeypatch.setattr(module, "merge_equal_outputs", lambda given: calls.append(1) or real(given))
    sessions = several(network, 4)
    assert len(calls) == 1
    merged = {id(session.plan(np.zeros((1, 48), np.float32)).merged) for session in sessions._sessions}
    assert len(merged) == 1


def test_kernels_are_chosen_once_for_devices_of_a_kind_however_many_rows_each_takes(
    network, rows, small_pieces, monkeypatch
):
    module = import_module("sparsenn.engine.choosing")
    chosen, real = [], module.segments_of
    monkeypatch.setattr(module, "segments_of", lambda compiled, rows: chosen.append(rows) or real(compiled, rows))
    sessions = several(network, 4)
    sessions.run(rows)
    assert len(chosen) == 1
    sessions.sessions[3].plan(rows.slice_groups(0, 3))
    assert [given.count for given in chosen[1:]] == [3]


def test_pieces_are_handed_out_as_devices_become_free(network, rows, small_pieces):
    sessions = several(network, 2)
    slow, fast = sessions._sessions
    other_done, taken = threading.Event(), {slow: 0, fast: 0}
    for session in (slow, fast):
        real = session._run_rows

        def run(given, first, last, *rest, session=session, real=real):
            taken[session] += 1
            if session is slow:
                other_done.wait(20)  # until the other one has done all else
            elif taken[fast] == 7:
                other_done.set()
            return real(given, first, last, *rest)

        session._run_rows = run
    found = sessions.run(rows)
    assert taken == {slow: 1, fast: 7}
    assert same(found.outputs, alone(network).run(rows).outputs)


# ---- Errors and interrupts -------------------------------------------------------------------------------------------


def threads(sessions):
    """Threads that are left when sessions are closed, which waits for those that are at work."""
    sessions.close()
    return [thread for thread in threading.enumerate() if thread.name.startswith("sparsenn ")]


@pytest.mark.parametrize("error", [OutOfMemoryError("full", 0), MemoryError("no"), DeviceError("gone")], ids=repr)
def test_an_error_of_one_device_ends_the_run(network, rows, small_pieces, error):
    sessions, failed = several(network, 3), threading.Event()
    first, one, last = sessions._sessions

    def fail(*_):
        failed.set()
        raise error

    def wait(given, first, last, *rest):
        assert failed.wait(20)
        while True:
            rest[-1](first, last, 0)  # which ends it

    one._run_rows = one._fill = fail
    first._run_rows = last._run_rows = first._fill = last._fill = wait
    with pytest.raises(type(error), match=str(error)):
        sessions.run(rows)
    with pytest.raises(type(error), match=str(error)):
        sessions(rows)
    assert not threads(sessions)


def test_an_interrupt_stops_all(network, rows):
    sessions = several(network, 2)

    def interrupt(task, done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sessions.run(rows, progress=interrupt)
    assert same(sessions.run(rows).outputs, alone(network).run(rows).outputs)
    assert not threads(sessions)


# ---- What may be asked for -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("devices", "names"),
    [
        ("cpu", ("cpu",)),
        ("0", ("cuda:0",)),
        ("0,2", ("cuda:0", "cuda:2")),
        ("cuda:1, 0", ("cuda:1", "cuda:0")),
        (["cuda:0", "cuda:3"], ("cuda:0", "cuda:3")),
        (["cpu"], ("cpu",)),
    ],
)
def test_names_of_devices(devices, names):
    assert device_names(devices) == names


@pytest.mark.parametrize(
    "devices", ["", "gpu", "cuda", "0,0", "cuda:1,1", "cpu,0", "all,0", "-1", "0;1", [], [0], 7, None, ["cuda:99999"]]
)
def test_other_names_are_refused_in_one_line(devices):
    with pytest.raises(UsageError, match=r"the devices are .*(; give all, cpu, or|twice)") as caught:
        device_names(devices)
    assert len(str(caught.value).splitlines()) == 1


def test_device_and_devices_are_not_given_together(network):
    for make, options, message in (
        (Sessions, {"devices": "cpu", "device": "cpu"}, "leave out device"),
        (Sessions, {"devices": "cpu", "machine": "h200"}, "leave out machine"),
        (Session, {"devices": "all"}, r"sparsenn\.Sessions"),
    ):
        with pytest.raises(UsageError, match=message):
            make(network, **options)


def test_closed_sessions_are_closed(network, rows):
    with several(network, 2) as sessions:
        assert sessions.nbytes >= 0
        assert len(sessions.devices) == 2
        assert sessions.plan(rows).inputs == 500
    with pytest.raises(UsageError, match="closed"):
        sessions.run(rows)


def test_sessions_pickle_as_their_networks_and_options(network, rows):
    sessions = several(network, 2)
    again = pickle.loads(pickle.dumps(sessions))
    assert same(again.run(rows).outputs, sessions.run(rows).outputs)
    assert len({id(session.network) for session in again._sessions}) == 1


class Elsewhere(CPUBackend):
    """A device for whose rows the host has no arrays."""

    def device_rows(self, inputs):
        return inputs


def test_rows_on_a_gpu_are_refused(network, rows):
    one = altered(network, backend=Elsewhere(), device="cpu")
    with pytest.raises(UsageError, match="rows are on a GPU"):
        Sessions.of([one, one]).run(rows.to_scipy().toarray())


def test_infinite_numbers_are_refused_by_all_unless_they_are_asked_not_to():
    network = Network((Linear(np.eye(4), None, Identity()),))
    rows = np.full((50, 4), np.inf, np.float64)
    with pytest.raises(InputError, match=r"column 1: the value inf is not a finite number"):
        several(network, 3)(rows)
    right = alone(network, check_finite=False)(rows)
    assert several(network, 3, check_finite=False)(rows).tobytes() == right.tobytes()
