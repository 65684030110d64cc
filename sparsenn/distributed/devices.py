"""Sessions: a network made ready on several devices, which share its rows."""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import fields, replace
from typing import Any, TypeVar, Unpack

import numpy as np

from sparsenn.backends import gpus
from sparsenn.distributed.sharing import Stopping, shared
from sparsenn.engine import Options, Plan, Result, Seconds, Session
from sparsenn.engine.inputs import InputRows, Inputs, check_form
from sparsenn.engine.options import NamedOptions
from sparsenn.engine.plan import with_inputs
from sparsenn.engine.result import concatenate_results
from sparsenn.errors import UsageError
from sparsenn.formats import Array, from_dense
from sparsenn.formats.libraries import to_input_type
from sparsenn.formats.named_shapes import cut_columns
from sparsenn.io.networks import NetworkSource
from sparsenn.network import Network
from sparsenn.runtime.progress import ProgressOption, shown_progress
from sparsenn.runtime.workers import chunks, renew_after_fork

Item = TypeVar("Item")
Value = TypeVar("Value")

Devices = str | Iterable[str]
"""`all`, `cpu`, or the names or numbers of GPUs: a text that commas divide, or several texts."""

PIECES = 4
"""Pieces of rows a device, at most: of devices that are not equally fast, the faster take more. Where a kernel gains
from many rows that meet, it is one: most of its time goes on layers that few rows are left in, again for each piece. So
it is where weights stream, once for each."""

# The least work of a piece where each device has more than that: kernels are less efficient for fewer rows, and a
# piece costs a few milliseconds during which its device computes nothing.
LEAST_ROWS = 4096
LEAST_SECONDS = 0.05

_NUMBER = re.compile(r"(?:cuda:)?([0-9]{1,4})")


def device_names(devices: Devices) -> tuple[str, ...]:
    """Return the names of devices, each once, as `Session` takes one.

    `devices`: `all` for all GPUs that are here; `cpu`; or GPUs by name or number, as `cuda:0` or `0`: several texts, or
    one that commas divide.
    """
    if not isinstance(devices, str | Iterable):
        raise UsageError(f"the devices are {devices!r}; {_KNOWN}")
    given = devices.split(",") if isinstance(devices, str) else list(devices)
    if not all(isinstance(name, str) for name in given):
        raise UsageError(f"the devices are {given!r}; {_KNOWN}")
    names = [name.strip() for name in given]
    if names == ["all"]:
        return gpus()
    if names == ["cpu"]:
        return ("cpu",)
    found = [_NUMBER.fullmatch(name) for name in names]
    numbers = [int(number[1]) for number in found if number]
    if len(numbers) < len(names) or not names:
        raise UsageError(f"the devices are {','.join(names)!r}; {_KNOWN}")
    if len(set(numbers)) < len(numbers):
        raise UsageError(f"the devices are {','.join(names)!r}, one of them twice; name each once")
    return tuple(f"cuda:{number}" for number in numbers)


_KNOWN = "give all, cpu, or GPUs by name or number, such as cuda:0,cuda:2 or 0,2"


def infer(
    network: NetworkSource,
    inputs: Inputs,
    *,
    devices: Devices | None = None,
    statistics: bool = True,
    progress: ProgressOption = None,
    **options: Unpack[NamedOptions],
) -> Result:
    """Run a network on some inputs, once: a `Session`, or `Sessions`, made for one call of `run`.

    Parameters
    ----------
    network : Network, or a model in another form
        As `Session` takes it.
    inputs : array_like, CSR, sparse or dense array of any library
        As `Session` takes them: of shape (samples, network.inputs).
    devices : str or iterable of str, optional
        Several, as `Sessions` takes them; unless given, the one that the options say.
    statistics : bool, default True
        Whether layers are counted and timed; without, nothing waits for the device from step to step.
    progress : callable or bool, optional
        As `Session.run` takes it.
    **options : Options
        As `Session` takes them.

    Returns
    -------
    Result
        Outputs, categories, counts by layer, and where the time went.

    Raises
    ------
    SparseNNError
        As `Session` and `Session.run`, or `Sessions` and `Sessions.run`, do.
    """
    return session_on(network, devices=devices, **options).run(inputs, statistics=statistics, progress=progress)


def session_on(network: NetworkSource, *, devices: Devices | None = None, **options: Any) -> Session | Sessions:
    """Return a session, or several where devices are named."""
    return Session(network, **options) if devices is None else Sessions(network, devices, **options)


class Sessions(AbstractContextManager["Sessions"]):
    """A network that is ready to run on several devices: a `Session` each, in a thread each.

    ::

        sessions = sparsenn.Sessions(network, devices="all")
        outputs = sessions(rows)
        result = sessions.run(rows)

    Rows, in the host's memory, are cut into pieces that devices take as they become free. What comes out is in the
    order of the rows and, where the devices are of one kind, has the same bits as with one device, as far as these do
    not depend on the batch size there: those of sparse layers do not, and none do with `reproducible`. Equal outputs
    are looked for, and kernels chosen, once.

    Parameters
    ----------
    network : Network, or a model in another form
        As `Session` takes it.
    devices : str or iterable of str, default 'all'
        `all` for all GPUs that are here; `cpu`; or GPUs by name or number, as `cuda:0` or `0`: several texts, or one
        that commas divide.
    **options : Options
        As `Session` takes them, but device and machine; memory limits are those of each device.

    Raises
    ------
    UsageError
        The devices are none of these, one is named twice, or device or machine is given.
    DeviceError
        A device is not there.
    SparseNNError
        As `Session` does.
    """

    def __init__(self, network: NetworkSource, devices: Devices = "all", **options: Unpack[NamedOptions]) -> None:
        for name in ("device", "machine"):
            if options.get(name) is not None:
                raise UsageError(f"devices names the devices; leave out {name}")
        names = device_names(devices)
        first = Session(network, **(options | {"device": names[0]}))
        self._begin([first, *map(first.on, names[1:])])

    @classmethod
    def of(cls, sessions: Sequence[Session]) -> Sessions:
        """Return sessions that share rows, of ready ones.

        Parameters
        ----------
        sessions : sequence of Session
            One or more, of one network with the same options.

        Returns
        -------
        Sessions
            Which has the given ones as `sessions`.
        """
        made = cls.__new__(cls)
        made._begin(sessions)
        return made

    def _begin(self, sessions: Sequence[Session]) -> None:
        self._sessions = tuple(sessions)
        self._after_fork()
        renew_after_fork(self)

    def _after_fork(self) -> None:
        """Take a lock and threads, here and in a forked child, which has no thread but the one that forked."""
        self._turns = threading.Lock()
        # threads that stay: cuBLAS makes what it needs for each thread anew
        self._threads = [ThreadPoolExecutor(1, f"sparsenn {device}") for device in self.devices]

    @property
    def network(self) -> Network:
        """The network as given."""
        return self._sessions[0].network

    @property
    def options(self) -> Options:
        """What was asked for, of the first device."""
        return self._sessions[0].options

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices in words."""
        return tuple(session.backend.description for session in self._sessions)

    @property
    def sessions(self) -> tuple[Session, ...]:
        """The session of each device."""
        return self._sessions

    @property
    def nbytes(self) -> int:
        """Memory that is kept on all devices, in bytes."""
        return sum(session.nbytes for session in self._sessions)

    def plan(self, inputs: Inputs) -> Plan:
        """Decide how inputs are run, and run nothing; all devices run them so.

        Parameters
        ----------
        inputs : array_like, CSR, sparse or dense array of any library
            As `Session` takes them: of shape (rows, network.inputs), or named ones in a dictionary.

        Returns
        -------
        Plan
            That of the first device.

        Raises
        ------
        SparseNNError
            As `Session.plan` does.
        """
        return self._sessions[0].plan(inputs)

    def __call__(self, inputs: Inputs, *, form: str | None = None) -> Any:
        """Return the network's outputs, or each by its name, as `Session` does; rows are in the host's memory.

        Parameters
        ----------
        inputs : array_like, CSR or sparse matrix
            As `Session` takes them: of shape (rows, network.inputs).
        form : {'dense', 'csr'}, optional
            Of the outputs; by default that of the inputs.

        Returns
        -------
        array, sparse matrix, or dict of str to array
            Of the inputs' library, as `Session` returns them.

        Raises
        ------
        UsageError
            The rows are on a GPU.
        SparseNNError
            As `Session` does.
        """
        if len(self._sessions) == 1:
            return self._sessions[0](inputs, form=form)
        check_form(form)
        if form is None and self.network.named_outputs is not None:
            return cut_columns(self.network.named_outputs, self(inputs, form="dense"))
        with self._turns, np.errstate(all="ignore"):
            taken, pieces, _ = self._begin_run(inputs)
            target = _Target((taken.count, self.network.outputs))

            def fill(session: Session) -> Callable[[tuple[int, int], Stopping], None]:
                return lambda rows, stopping: session._fill(taken, *rows, target, stopping.check)

            with self.shared(fill, pieces, len(pieces)) as finished:
                for _ in finished:
                    pass
            outputs: Any = target(np.float32)
            if (form or ("csr" if taken.is_sparse else "dense")) == "csr":
                outputs = from_dense(outputs, outputs.dtype.type)
            return to_input_type(taken.source, outputs)

    def run(self, inputs: Inputs, *, statistics: bool = True, progress: ProgressOption = None) -> Result:
        """Run the network, and say what came of it, as `Session.run` does; rows are in the host's memory.

        Seconds of preparing, copying and compiling are the mean of the devices', which do so side by side.

        Parameters
        ----------
        inputs : array_like, CSR or sparse matrix
            As `Session` takes them: of shape (rows, network.inputs).
        statistics : bool, default True
            Whether layers are counted and timed; without, nothing waits for the devices from step to step.
        progress : callable or bool, optional
            As `Session.run` takes it.

        Returns
        -------
        Result
            Outputs, categories, counts by layer, and where the time went.

        Raises
        ------
        UsageError
            The rows are on a GPU.
        SparseNNError
            As `Session.run` does.
        """
        if len(self._sessions) == 1:
            return self._sessions[0].run(inputs, statistics=statistics, progress=progress)
        with shown_progress(progress) as report, self._turns, np.errstate(all="ignore"):
            taken, pieces, planned = self._begin_run(inputs)
            start = time.perf_counter()
            size = max(1, *(last - first for first, last in pieces))

            def run(session: Session) -> Callable[[tuple[int, int], Stopping], Result]:
                return lambda rows, stopping: session._run_rows(taken, *rows, size, statistics, stopping.check)

            results: dict[tuple[int, int], Result] = {}
            spent, done = Seconds(), 0
            with self.shared(run, pieces, len(pieces)) as finished:
                for rows, result in finished:
                    results[rows], spent, done = result, spent + result.seconds, done + result.inputs
                    report("rows", done, taken.count)
            wall = time.perf_counter() - start
        ordered = [results[rows] for rows in sorted(results)]
        plans = [result.plan for result in ordered]
        first = next((plan for plan in plans if plan.backend is self._sessions[0].backend), plans[0])
        plan = with_inputs(first, taken.count, taken.density)
        result = concatenate_results(ordered, plan, planned + wall_seconds(spent, len(self._sessions), wall, "compute"))
        return replace(result, notes=(*result.notes, f"Samples were shared by {', '.join(self.devices)}."))

    def close(self) -> None:
        """Give back the memory of weights and buffers; the sessions can be used no more."""
        for session, thread in zip(self._sessions, self._threads, strict=True):
            session.close()
            thread.shutdown()

    def __reduce__(self) -> tuple[Any, ...]:
        return Sessions.of, (self._sessions,)

    def __exit__(self, *error: object) -> None:
        self.close()

    def _begin_run(self, inputs: Inputs) -> tuple[InputRows, list[tuple[int, int]], Seconds]:
        """Read rows, and plan for them on the first device, from which the others learn; return them in pieces."""
        first, *others = self._sessions
        rows, plan, seconds = first._begin_shared(inputs)
        for session in others:
            session._learn(first)
        return rows, self._pieces(rows.count, plan), seconds

    def shared(
        self, worker: Callable[[Session], Callable[[Item, Stopping], Value]], items: Iterable[Item], ahead: int
    ) -> AbstractContextManager[Iterator[tuple[Item, Value]]]:
        """Have all sessions do items as they become free, each in its own thread; see `sharing.shared`.

        Parameters
        ----------
        worker : callable
            Returns, for a session, what does an item; that may look whether it is to stop.
        items : iterable
            Taken one by one, in one thread at a time.
        ahead : int
            How many may be done, or be under way, beside one a session, before what was made of them is asked for.

        Returns
        -------
        context manager
            Of an iterator over the items that are done with what was made of them, in the order of their ends.
        """
        return shared(self._threads, [worker(session) for session in self._sessions], items, ahead)

    def _pieces(self, count: int, plan: Plan) -> list[tuple[int, int]]:
        """Cut rows into pieces of one size: as many for each device."""
        devices, seconds = len(self._sessions), plan.estimate
        seconds = math.inf if seconds is None else seconds * len(plan.batches)
        most = 1 if plan.groups_rows or plan.streams else PIECES
        pieces = devices * max(1, int(min(most, count / devices / LEAST_ROWS, seconds / devices / LEAST_SECONDS)))
        return chunks(count, max(1, -(-count // pieces))) or [(0, 0)]


def wall_seconds(spent: Seconds, devices: int, wall: float, rest: str) -> Seconds:
    """Return where wall time went, of what devices spent side by side: the mean of each part, the rest on `rest`."""
    shares = {part.name: getattr(spent, part.name) / devices for part in fields(Seconds)}
    others = sum(share for name, share in shares.items() if name != rest)
    return Seconds(**{**shares, rest: max(0.0, wall - others)})


class _Target:
    """The matrix of all outputs, made when the first thread asks for it."""

    def __init__(self, shape: tuple[int, int]) -> None:
        self._shape, self._turns = shape, threading.Lock()
        self._matrix: Array | None = None

    def __call__(self, dtype: Any) -> Array:
        with self._turns:
            if self._matrix is None:
                self._matrix = np.empty(self._shape, dtype)
            return self._matrix
