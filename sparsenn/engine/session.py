"""Session: a network made ready on a device once, and called with rows as often as wanted."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import TracebackType
from typing import Any

import numpy as np

from sparsenn.backends import Backend, NumberCheck, RowsCheck, RowsLeft
from sparsenn.engine.attempts import Attempts
from sparsenn.engine.clock import Clock, Unwatched
from sparsenn.engine.finite import HALF_PRECISION, check_inputs
from sparsenn.engine.inputs import Given, Inputs, like, look
from sparsenn.engine.options import Options
from sparsenn.engine.plan import Plan, Problem, with_inputs
from sparsenn.engine.ready import Pass
from sparsenn.engine.result import BatchOutput, Result
from sparsenn.engine.shelf import Shelf, form_of_features
from sparsenn.engine.steps import CONV_OPERATION, DENSE_OPERATION
from sparsenn.engine.steps_done import StepsDone
from sparsenn.engine.tally import Tally
from sparsenn.errors import OutOfMemoryError, UsageError
from sparsenn.formats import Array
from sparsenn.layers import ImageLayer
from sparsenn.network import Network
from sparsenn.progress import Progress, silent
from sparsenn.spans import span, watchers

__all__ = ["Session"]

PIECE_BYTES = 64 << 20
"""Rows from the host that are copied to a GPU at a time, while those before are computed: enough for eight threads to
fill pinned memory side by side, and a few milliseconds' work."""

FORMS = ("dense", "csr")

OWN_OUTPUTS = (CONV_OPERATION, DENSE_OPERATION)
"""Operations whose kernels give outputs in memory that nothing else uses; some layers of images return their inputs."""

_NOTHING = (0.0, 0.0)
"""Seconds that were spent on nothing, and on compiling for it."""

_QUIET = Pass(Unwatched())
"""What goes along with rows of which nothing is noted."""


class Session:
    """A network that is ready to run: its plan, weights on the device, buffers, and captured graphs.

    ::

        session = sparsenn.Session(network, device="cuda")
        outputs = session(rows)                       # where the rows are, and in their form
        result = session.run(rows)                    # categories, statistics by layer, timings

    What depends on how many rows come, and in which form, is made ready when such rows come first, and kept. A session
    may be used by several threads: they take turns. Rows on a GPU are not copied, and where the network allows it
    nothing waits for the device: outputs are queued on CuPy's current stream, as CuPy's own functions are.

    A session can be closed, which frees its memory, and used as a context; it pickles as its network and options.

    Parameters
    ----------
    network : the layers.
    options : device, machine, kernel, precision, batch_size, memory_limit, weight_memory, compaction, deduplication,
        merging and reproducible, as `sparsenn.engine.Options` describes them.

    Raises
    ------
    UsageError
        The network is no `Network`; the device, the kernel or the precision does not exist, or they do not go together
        or with the network; or a size is not positive.
    DeviceError
        The device is not there.
    """

    def __init__(self, network: Network, **options: Any) -> None:
        with np.errstate(all="ignore"):
            self._begin(Problem.of(network, Options.of(options)))

    @classmethod
    def of_plan(cls, plan: Plan) -> Session:
        """Return a session that runs rows of the plan's form and number as the plan says, and others as fits them."""
        made = cls.__new__(cls)
        made._begin(plan.problem)
        made._shelf.put(plan)
        return made

    def _begin(self, problem: Problem) -> None:
        self._problem = problem
        self._shelf = Shelf(problem)
        self._images = any(layer.family is ImageLayer for layer in problem.network)
        self._lock = threading.RLock()
        self._unspent = problem.seconds, problem.compile_seconds
        self._used: Plan | None = None
        self._plan_told: tuple[tuple[Plan, int, float | None], Plan] | None = None
        self._closed = False

    @property
    def network(self) -> Network:
        """The network as given."""
        return self._problem.network

    @property
    def options(self) -> Options:
        """What was asked for."""
        return self._problem.options

    @property
    def backend(self) -> Backend:
        """What computes."""
        return self._problem.backend

    @property
    def nbytes(self) -> int:
        """Memory that the session keeps on its device, in bytes: weights as prepared (estimated), buffers for rows."""
        with self._lock:
            return self._shelf.nbytes

    def plan(self, inputs: Inputs) -> Plan:
        """Decide how inputs are run, and run nothing.

        Parameters
        ----------
        inputs : of shape (rows, network.inputs); any that `__call__` takes.

        Raises
        ------
        SparseNNError
            As `__call__` does.
        """
        with self._lock, np.errstate(all="ignore"):
            self._refuse_closed()
            given = look(self.network, inputs, self.backend)
            return self._told(self._shelf.plan_of(given), given)

    def __call__(self, inputs: Inputs, *, form: str | None = None) -> Any:
        """Return the network's outputs, of shape (rows, outputs).

        Parameters
        ----------
        inputs : rows of shape (rows, network.inputs): a NumPy or CuPy array, a SciPy or CuPy sparse matrix of any kind,
            `CSR`, nested lists, or whatever speaks DLPack or CUDA's array interface, such as PyTorch's and JAX's
            arrays. Images may come as an array of shape (images, channels, height, width), too.
        form : of the outputs: `dense` or `csr`; by default that of the inputs.

        Returns
        -------
        Outputs where the inputs were, and in the same library's type where there is one: a NumPy array for NumPy, lists
        and the like, SciPy's CSR for SciPy's matrices, a CuPy array for rows on a GPU, PyTorch's tensors for its own.
        Their type is float32; float16 where the rows are that and the kernels take them, as those of precision `fp16`
        on a GPU do; float64 on the device `reference`, and in precision `float64`.

        Raises
        ------
        ShapeError, MatrixError, InputError
            The inputs are no matrix of real numbers of the network's width; sparse ones break their format; or they are
            images, on the host, with a number that is infinite or NaN.
        NumericError
            They are on the host, and inputs, outputs or hidden values of layers in precision `fp16` went beyond what it
            holds. For rows on a GPU that would mean to wait: nothing is looked at there, and numbers beyond 65,504
            count as infinite, of which an activation may make finite ones again.
        UsageError
            They are on a GPU that the network is not on; the form does not exist; or the session is closed.
        OutOfMemoryError, MemoryError
            Memory does not suffice for a single row, on the device or on the host.
        """
        if form is not None and (not isinstance(form, str) or form not in FORMS):
            raise UsageError(f"outputs are dense or csr, not {form!r}")
        with self._watched_turn("call") if watchers["run"] else self._lock, np.errstate(all="ignore"):
            self._begin_turn()
            try:
                if form is None and self.backend.reads_as_is(inputs):
                    rows: Any = inputs
                    ready = self._shelf.settled.get((rows.shape, rows.dtype))
                    if ready is not None:
                        if self._images and self.backend.in_host_memory and not self.backend.largest_number(rows)[1]:
                            check_inputs(rows)
                        with suppress(OutOfMemoryError, MemoryError):  # what follows takes fewer rows at a time
                            if rows.dtype == np.float16:
                                rows = self._shelf.place(rows, ready.plan.keeps_half)
                            return self._spread(ready.run(rows, _QUIET), ready.plan, rows.shape[0])
                with span("look at inputs", "convert"):
                    given = look(self.network, inputs, self.backend)
                outputs = self._outputs(given, Pass(Unwatched(), check=self._number_check(given)))
                if form == "csr" or (form is None and given.sparse):
                    with span("outputs to CSR", "convert"):
                        outputs = self._as_csr(outputs, given.on_host)
                return like(given.source, outputs)
            finally:
                self._unspent = _NOTHING
                self._end_turn()

    def run(self, inputs: Inputs, *, statistics: bool = True, progress: Progress = silent) -> Result:
        """Run the network, and say what came of it: outputs, categories, counts by layer, and where the time went.

        A batch for which memory does not suffice is done again with fewer rows, as are those after it with no more; the
        result's notes say so.

        Parameters
        ----------
        inputs : as `__call__` takes them.
        statistics : whether layers are counted and timed; without, nothing waits for the device from step to step.
        progress : told of layers done; steps are layers times batches, as planned.

        Raises
        ------
        SparseNNError
            As `__call__` does; or the progress is none that can be told.
        """
        if not callable(progress):
            raise UsageError(f"the progress is {progress!r}; give a function of a task, steps done and all steps")
        with self._watched_turn("run") if watchers["run"] else self._lock, np.errstate(all="ignore"):
            self._begin_turn()
            try:
                return self._run(inputs, statistics, progress)
            finally:
                self._end_turn()

    def close(self) -> None:
        """Give back the memory of weights and buffers; the session can be used no more."""
        with self._lock:
            self._closed = True
            self._shelf.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        if not sys.is_finalizing() and not getattr(self, "_closed", True):
            self.backend.before_drop()

    def __reduce__(self) -> tuple[Any, ...]:
        return _session, (self.network, self.options)

    def __str__(self) -> str:
        sizes = self.network.shapes
        shown = [" × ".join(map(str, shape)) for shape in (sizes if len(sizes) <= 8 else (*sizes[:3], *sizes[-2:]))]
        if len(sizes) > 8:
            shown.insert(3, "…")
        return f"{' - '.join(shown)} on {self.backend.description}"

    __repr__ = __str__

    # ---- One call ------------------------------------------------------------------------------------------------

    def _refuse_closed(self) -> None:
        if self._closed:
            raise UsageError("the session is closed")

    @contextmanager
    def _watched_turn(self, name: str) -> Iterator[None]:
        """Take a turn of this thread, as `with self._lock` does, in spans."""
        with span(name, "run", network=str(self)):
            with span("wait for the turn", "wait"):
                self._lock.acquire()
            try:
                yield
            finally:
                self._lock.release()

    def _begin_turn(self) -> None:
        self._refuse_closed()
        self.backend.begin_turn()

    def _end_turn(self) -> None:
        self.backend.end_turn()
        self._shelf.weights.end_run()

    def _run(self, inputs: Inputs, statistics: bool, progress: Progress) -> Result:
        clock = Clock(self.backend)
        with span("look at inputs", "convert"):
            given = look(self.network, inputs, self.backend)
        spent, self._unspent = self._unspent, _NOTHING
        with clock.part("plan", "plan"):
            plan = self._shelf.plan_of(given)
            size = self._problem.batch_size(given.count)
        steps = StepsDone(progress, len(self.network), given.count, size)
        tally = Tally.of(self.network) if statistics else None
        batches, categories = [], [np.zeros(0, np.int64)]
        attempts = Attempts(given.count, size, self._shelf.make_room)
        going = Pass(clock, check=self._number_check(given), keep_half=plan.keeps_half)
        for first, last in attempts:
            going.tally, going.following = Tally.of(self.network) if statistics else None, last < given.count
            going.report = partial(steps.report, first, last)
            with attempts.trying(), span("batch", "batch", first=first, rows=last - first):
                batch, living = self._batch(given, first, last, attempts.size, going)
                if tally is not None and going.tally is not None:
                    tally.join(going.tally)
                categories.append(first + living)
                batches.append(batch)
                attempts.done()
        self._refuse_infinite(given, going.check)
        steps.end()
        found = np.concatenate(categories)
        return Result(
            plan=self._told(plan if self._used is None else self._used, given),
            inputs=given.count,
            neurons=self.network.inputs,
            layers=len(self.network),
            edges=self.network.multiply_adds,
            categories=found,
            statistics=tally.statistics(self.network) if tally is not None else (),
            seconds=clock.seconds(*spent),
            batches=tuple(batches),
            notes=attempts.notes(),
        )

    def _told(self, plan: Plan, given: Given) -> Plan:
        """Return a plan with the number of the rows and their density, as callers are told it."""
        key = plan, given.count, given.density
        if self._plan_told is None or self._plan_told[0] != key:
            self._plan_told = key, with_inputs(*key)
        return self._plan_told[1]

    def _outputs(self, given: Given, going: Pass) -> Any:
        """Return dense outputs for all rows, where these are."""
        network, backend, plan = self.network, self.backend, self._shelf.plan_of(given)
        going.keep_half = plan.keeps_half
        target: Array | None = None
        parts: list[Any] = []
        waiting: list[Callable[[], None]] = []
        moves = given.on_host and not backend.in_host_memory
        size = min(plan.batch_size, self._piece(plan, given))
        attempts = Attempts(given.count, size, self._shelf.make_room)
        for first, last in attempts:
            going.following = last < given.count
            with attempts.trying(), span("batch", "batch", first=first, rows=last - first):
                left = self._through(given, first, last, attempts.size, going)
                assert self._used is not None, "rows have gone through the layers"
                rows = self._spread(left, self._used, last - first)
                if not moves:
                    parts.append(rows)
                else:
                    target = np.empty((given.count, network.outputs), rows.dtype) if target is None else target
                    with span("copy out", "transfer"):
                        waiting.append(backend.fetch_later(rows, target[first:last]))
                attempts.done()
            while len(waiting) > 2:
                _finish(waiting.pop(0))
        for finish in waiting:
            _finish(finish)
        self._refuse_infinite(given, going.check)
        if moves:
            return np.empty((0, network.outputs), np.float32) if target is None else target
        if len(parts) == 1:
            self._settle(given)
            return parts[0]
        return backend.joined(parts, network.outputs)

    def _settle(self, given: Given) -> None:
        """Remember what runs such rows, where nothing but the steps is to be done with them."""
        plan, as_it_is = self._used, given.source is given.rows and self.backend.reads_as_is(given.source)
        if plan is None or not as_it_is:
            return
        if given.on_host and (self._watches(plan) or (self._images and not self.backend.in_host_memory)):
            return
        self._shelf.settle((given.source.shape, given.source.dtype), plan)

    def _spread(self, left: RowsLeft, plan: Plan, count: int) -> Any:
        """Return each input's outputs, in memory that is the caller's."""
        expansion = self._problem.merged.expansion
        own = left.owner is None and expansion is None and plan.steps[-1].kernel.operation in OWN_OUTPUTS
        return left.features if own else self.backend.spread(left, expansion, count)

    def _piece(self, plan: Plan, given: Given) -> int:
        """Return how many rows are copied to the device at a time: all, unless copies and computing can overlap."""
        if not given.on_host or given.sparse or self.backend.in_host_memory or plan.groups_rows or plan.streams:
            return max(1, given.count)
        pieces = -(-given.count * given.row_bytes // PIECE_BYTES)
        return max(1, -(-given.count // max(1, pieces)))

    def _batch(self, given: Given, first: int, last: int, size: int, going: Pass) -> tuple[BatchOutput, Array]:
        """Run some rows; return their outputs, and which of them end with a non-zero."""
        with going.clock.part("transfer", "check"):
            check = self._shelf.queue_check(given, first, last, size)
        living, kept = self._taken_out(given, first, last, size, going, check)
        if check is not None and not check.passed():  # the rows are of another form than those before
            going.tally = None if going.tally is None else Tally.of(self.network)
            living, kept = self._taken_out(given, first, last, size, going)
        return BatchOutput(kept, last - first, None if self.backend.in_host_memory else self.backend.fetch), living

    def _taken_out(
        self, given: Given, first: int, last: int, size: int, going: Pass, check: RowsCheck | None = None
    ) -> tuple[Array, RowsLeft]:
        """Run some rows, whose check may be queued; return which of them end with a non-zero, and all that is left."""
        left = self._through(given, first, last, size, going, check)
        with going.clock.part("transfer", "copy out"):
            return self.backend.take_out(left, last - first, self.options.compaction)

    def _through(
        self, given: Given, first: int, last: int, size: int, going: Pass, check: RowsCheck | None = None
    ) -> RowsLeft:
        """Bring some rows to the device, and take them through the layers, as steps that are ready for `size` do."""
        with going.clock.part("transfer", "copy in"):
            features = self._shelf.place(given.part(first, last), going.keep_half) if check is None else check.rows
        form = form_of_features(features)
        self._shelf.note(given, form)
        with going.clock.part("prepare", "ready plan"):
            ready = self._shelf.ready_for(form, given.count, size)
        self._used = ready.plan
        if going.check is not None:
            going.check.look(features)
            if self.backend.in_host_memory:  # where it is known at once
                self._refuse_infinite(given, going.check)
        if given.on_host and self._watches(ready.plan):
            going.watch = self._shelf.half_range.watch()
        return ready.run(features, going)

    def _watches(self, plan: Plan) -> bool:
        return any(step.kernel.precision == HALF_PRECISION for step in plan.steps)

    def _number_check(self, given: Given) -> NumberCheck | None:
        """Return what looks for NaN and infinity among images from the host; other rows are not looked at."""
        return self.backend.number_check() if self._images and given.on_host else None

    def _refuse_infinite(self, given: Given, check: NumberCheck | None) -> None:
        if check is not None and not check.result()[1]:
            check_inputs(given.rows)

    def _as_csr(self, outputs: Any, on_host: bool) -> Any:
        if not on_host:
            return self.backend.as_csr(outputs)
        from sparsenn.formats import from_dense

        return from_dense(outputs, outputs.dtype.type)


def _finish(copy: Callable[[], None]) -> None:
    """Wait for the end of a copy."""
    with span("wait for the copy", "wait"):
        copy()


def _session(network: Network, options: Options) -> Session:
    """Return a session of another process, made anew."""
    made = Session.__new__(Session)
    made._begin(Problem.of(network, options))
    return made
