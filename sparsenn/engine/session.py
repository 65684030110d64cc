"""Session: a network prepared on a device once, then called with rows as often as you like."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from importlib import import_module
from typing import Any, Unpack

import numpy as np

from sparsenn.backends import Backend
from sparsenn.engine.batches import Report, compute_outputs, layer_report, refuse_earlier, run_rows
from sparsenn.engine.calls import BoundCall, bind
from sparsenn.engine.compiled_network import CompiledNetwork
from sparsenn.engine.inputs import InputRows, Inputs, are_named, check_form, packed_inputs, read_inputs
from sparsenn.engine.options import NamedOptions, Options, read_options
from sparsenn.engine.plan import Plan, with_inputs
from sparsenn.engine.plan_cache import PlanCache
from sparsenn.engine.result import Result
from sparsenn.errors import OpenSizesError, UsageError
from sparsenn.formats import Array
from sparsenn.formats.arrays import size
from sparsenn.formats.libraries import to_input_type
from sparsenn.formats.named_shapes import cut_columns
from sparsenn.io.networks import NetworkSource, network_of
from sparsenn.network import Network
from sparsenn.plugins import Viewed
from sparsenn.runtime.memory import check_memory
from sparsenn.runtime.progress import ProgressOption, shown_progress, silent
from sparsenn.runtime.spans import span, watchers
from sparsenn.runtime.timing import Seconds, Timer, section
from sparsenn.runtime.workers import is_free, renew_after_fork

CALLS_UNTIL_READY = 3  # the first prepares, the second captures a graph, the third may replay it


class Session(Viewed):
    """A network that is ready to run: its plan, weights on the device, buffers, and captured graphs.

    ::

        session = sparsenn.Session("model.onnx", device="cuda")
        outputs = session(rows)                       # where the rows are, and in their form
        result = session.run(rows)                    # categories, statistics by layer, timings

    Plans, weights and buffers for a number and form of rows are prepared in the first call with such rows, and cached;
    graphs in the second. Several threads may use a session: one call runs at a time.
    Where the network allows it, no later call waits for the GPU, and rows on a GPU are not copied to the host: outputs
    are queued on CuPy's current stream, as CuPy's own functions are, and on PyTorch's for its tensors.

    A session can be closed, which frees its memory, and used as a context; it pickles as its network and options.

    Parameters
    ----------
    model : Network, Model, str, path-like, bytes, torch.nn.Module, ExportedProgram, onnx.ModelProto or estimator
        A network; or a model in a file that `sparsenn.read_model` takes, or of PyTorch, ONNX or scikit-learn, as
        `from_torch`, `from_onnx` and `from_sklearn` take it. Call these yourself for their options. The scaling of a
        `Model` becomes part of the layers. Of an ONNX model, each call's inputs fix sizes that are open.
    **options : Options
        As `sparsenn.engine.Options` describes them.

    Raises
    ------
    UsageError
        The model is none of these; an option, device, kernel or precision does not exist, or they do not go together
        or with the network; or a size is not positive.
    DeviceError
        The device is not there.
    SparseNNError
        As these functions do.
    """

    def __init__(self, model: NetworkSource, **options: Unpack[NamedOptions]) -> None:
        with np.errstate(all="ignore"):
            checked = read_options(options)
            try:
                network = network_of(model)
            except OpenSizesError as error:
                self.__class__ = import_module("sparsenn.engine.open_sizes").SessionBySize
                self.__init__(model, options, error)  # type: ignore[misc]
            else:
                self._begin(CompiledNetwork.of(network, checked))

    @classmethod
    def of_plan(cls, plan: Plan) -> Session:
        """Return a session that runs rows of the plan's form and number as planned, and plans anew for others.

        Parameters
        ----------
        plan : Plan
            Made by `sparsenn.plan`, or by a session's.

        Returns
        -------
        Session
        """
        session = cls._of(plan.compiled)
        session._cache.put(plan)
        return session

    def _begin(self, compiled: CompiledNetwork) -> None:
        self._compiled = compiled
        self._cache = PlanCache(compiled)
        self._lock = threading.RLock()
        # seconds of planning, and of compiling among them, until a run has reported them
        self._unspent: tuple[float, ...] = compiled.seconds, compiled.compile_seconds
        self._closed = False
        renew_after_fork(self)

    def _after_fork(self) -> None:
        """Begin anew, in a forked child, if another thread held a lock: it may have been changing the caches."""
        if self._closed or (is_free(self._lock) and is_free(self._compiled.lock)):
            return
        if self.backend.in_host_memory:
            self._begin(replace(self._compiled, lock=threading.Lock()))
        else:  # GPU memory can be neither used nor freed in the child: the next call reports that
            self._lock = threading.RLock()

    def on(self, device: str, **options: Any) -> Session:
        """Return a session of the same network on another device, which shares what is known about the network.

        Parameters
        ----------
        device : str
            As `Options` has it.
        **options : Options
            Memory limits and batch size, where they should differ; all else stays.

        Returns
        -------
        Session
            Another session; this one stays as it is. Errors are those of `Session`.
        """
        return self._of(self._compiled.on(replace(self.options, device=device, **options)))

    @classmethod
    def _anew(cls, network: Network, options: Options, in_order: bool = False) -> Session:
        """Return a session of options, checked anew; `in_order`, with the bits of sessions elsewhere."""
        return cls._of(CompiledNetwork.of(network, replace(options), in_order))

    @classmethod
    def _of(cls, compiled: CompiledNetwork) -> Session:
        session = cls.__new__(cls)
        session._begin(compiled)
        return session

    @property
    def network(self) -> Network:
        """The network, before any pass."""
        return self._compiled.network

    @property
    def options(self) -> Options:
        """What was asked for; the precision `auto` as what it means for the network."""
        return self._compiled.options

    @property
    def backend(self) -> Backend:
        """The backend that computes."""
        return self._compiled.backend

    @property
    def nbytes(self) -> int:
        """Memory of the session on its device, in bytes: weights as prepared (estimated), buffers for rows."""
        with self._lock:
            return self._cache.nbytes

    def plan(self, inputs: Inputs) -> Plan:
        """Decide how inputs would be run: with the kernels that are the fastest for them, as far as these are timed.

        Errors are those of `__call__`.

        Parameters
        ----------
        inputs : array_like, CSR, sparse or dense array of any library
            Of shape (rows, network.inputs); any that `__call__` takes.

        Returns
        -------
        Plan
            What `str` says in words, and `to_dict` in plain values.
        """
        with self._exclusive("plan"):
            rows = self._read(inputs)
            return with_inputs(self._cache.plan_of(rows), rows.count, rows.density)

    def __call__(self, inputs: Inputs | None = None, *, form: str | None = None, **named: Inputs) -> Any:
        """Return the network's outputs, of shape (rows, outputs), or each by its name where they have names.

        Parameters
        ----------
        inputs : array_like, CSR, sparse or dense array of any library
            Rows, of shape (rows, network.inputs): a NumPy or CuPy array, a SciPy or CuPy sparse matrix of any kind,
            `CSR`, nested lists, or anything with DLPack or CUDA's array interface, such as PyTorch's and JAX's
            arrays. Images may come as an array of shape (images, channels, height, width), too. Or a dictionary of
            such by the network's named inputs, each of shape (rows, ...), all of one library; or a list in their order.
            A single input without a name may come under any.
        form : str, optional
            Form of the outputs: `dense` or `csr`, a matrix of all outputs side by side; by default that of the inputs,
            and where the network names its outputs, a dictionary of dense arrays.
        **named : as `inputs`
            Named inputs, in place of a dictionary; one that is called `inputs` or `form` needs the dictionary.

        Returns
        -------
        array, sparse matrix, or dict of str to array
            Outputs where the inputs were, in a type of their library: an array of NumPy's for lists, SciPy's CSR for
            its matrices, CuPy's array for other rows on a GPU than PyTorch's. They are float32; float16 where rows are
            and kernels of precision `float16` take these; float64 on the device `reference`, and in `float64`.

        Raises
        ------
        ShapeError, MatrixError, InputError
            The inputs are not a matrix of real numbers of the network's width, or named ones do not have their shapes
            or differ in rows; sparse ones break their format; or they, or those of an earlier call that were on a GPU,
            hold NaN or an infinite number (`Session.check`).
        NumericError
            They are on the host, and inputs, outputs or hidden values of layers in precision `float16` are beyond its
            range. Rows on a GPU are not checked, as that would mean waiting: numbers beyond 65,504 count as infinite
            there, of which an activation may make finite ones again.
        UsageError
            They are on a GPU that the network is not on; a named one is missing or unknown; the form does not exist;
            outputs in the form `csr` have more non-zeros than CuPy's matrices can have; or the session is closed.
        OutOfMemoryError, MemoryError
            Memory does not suffice for a single row, on the device or on the host.
        """
        check_form(form)
        cache, is_plain = self._cache, form is None or (form == "dense" and self.network.named_outputs is None)
        is_watched, has_calls = watchers["run"] or watchers["step"], cache.runs or cache.calls
        if has_calls and is_plain and not (is_watched or (named and inputs is not None)):
            with self._lock:
                refuse_earlier(cache.watch)
                outputs = cache.direct_outputs(named if inputs is None else inputs)
            if outputs is not None:
                return outputs
        if named or are_named(inputs):
            return self(packed_inputs(self.network, inputs, named), form=form)
        if form is None and self.network.named_outputs is not None:
            return cut_columns(self.network.named_outputs, self(inputs, form="dense"))
        with self.backend.queue.stream_of(inputs), self._exclusive("call"):
            self._unspent = ()
            refuse_earlier(cache.watch)
            rows = self._read(inputs)
            outputs = compute_outputs(cache, rows, 0, rows.count)
            if (form or ("csr" if rows.is_sparse else "dense")) == "csr":
                with span("outputs to CSR", "convert"):
                    outputs = self.backend.as_csr(outputs)
            return to_input_type(rows.source, outputs)

    def bind(self, inputs: Inputs, out: Any = None) -> BoundCall:
        """Return a call on fixed arrays; with rows on a GPU, the call is one captured graph, as `BoundCall` describes.

        Parameters
        ----------
        inputs : dense array of any library
            Rows as `__call__` takes them, row-major and float32 or float16.
        out : array, optional
            For outputs, of their shape and type and where the inputs are; by default a new one.

        Returns
        -------
        BoundCall
            A function without parameters.

        Raises
        ------
        SparseNNError
            As `__call__` does; and for inputs that would be copied, or an array that outputs do not fit.
        """
        return bind(self, inputs, out)

    def run(self, inputs: Inputs, *, statistics: bool = True, progress: ProgressOption = None) -> Result:
        """Run the network; return outputs, categories, counts by layer, and where the time went.

        A batch that does not fit in memory is run again with fewer rows, and no later batch has more; the result's
        notes say so.

        Parameters
        ----------
        inputs : array_like, CSR, sparse or dense array of any library
            As `__call__` takes them, named ones in a dictionary.
        statistics : bool, default True
            Whether layers are counted and timed; without, nothing waits for the device from step to step.
        progress : callable or bool, optional
            Called as `progress(task, done, total)`; steps are layers times batches, as planned. By default, bars on a
            terminal and in notebooks where a run takes a while; True shows them, or lines, anywhere; False nothing.

        Returns
        -------
        Result
            Outputs, the plan, counts by layer, and seconds by what they were spent on.

        Raises
        ------
        SparseNNError
            As `__call__` does; or the progress is something else.
        """
        with shown_progress(progress) as report_layers, self._exclusive("run"):
            refuse_earlier(self._cache.watch)
            timer, self._unspent = Timer(*self._unspent), ()
            rows = self._read(inputs)
            size = self._cache.batch_size(rows.count)
            report = layer_report(report_layers, len(self.network), rows.count, size)
            return run_rows(self._cache, rows, 0, rows.count, size, statistics, timer, report)

    def warm_up(self, rows: Inputs | int, *, progress: ProgressOption = silent) -> Plan:
        """Compile and time kernels, and prepare all else that later calls with such rows would wait for.

        Parameters
        ----------
        rows : int, or inputs as `__call__` takes them
            A number of dense rows, random ones; or rows like those to come, on which kernels are timed.
        progress : callable or bool, optional
            As `run` takes it: True also writes to a log that kernels are compiled. By default, no bars are shown.

        Returns
        -------
        Plan
            How such rows are run.
        """
        if isinstance(rows, int):
            check_memory(4 * size(rows, "rows") * self.network.inputs, f"{rows:,} rows to warm up with")
            rows = np.random.default_rng(0).random((rows, self.network.inputs), np.float32)
        plan = self.run(rows, progress=progress).plan
        for _ in range(CALLS_UNTIL_READY):
            self(rows)
        self.check()
        return plan

    def check(self) -> None:
        """Wait for the device, and refuse rows on a GPU that earlier calls could not check in time.

        A call does not wait for its GPU to check rows there: the next call reports faults that are known by then, this
        method all. It does nothing where rows come from the host.

        Raises
        ------
        InputError
            Rows of an earlier call held NaN or an infinite number; each is reported once.
        """
        with self._exclusive("check"):
            self._compiled.backend.queue.wait()
            refuse_earlier(self._cache.watch)

    def close(self) -> None:
        """Free the memory of weights and buffers; the session cannot be used afterwards."""
        with self._lock:
            self._closed = True
            self._cache.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not sys.is_finalizing() and not getattr(self, "_closed", True):
            self.backend.queue.before_drop()

    def __reduce__(self) -> tuple[Any, ...]:
        return Session._anew, (self.network, self.options)

    def __str__(self) -> str:
        sizes = self.network.shapes
        shown = [" × ".join(map(str, shape)) for shape in (sizes if len(sizes) <= 8 else (*sizes[:3], *sizes[-2:]))]
        shown[3:3] = ["…"] * (len(sizes) > 8)
        return f"{' - '.join(shown)} on {self.backend.description}"

    __repr__ = __str__

    @contextmanager
    def _exclusive(self, name: str) -> Iterator[None]:
        with span(name, "run", network=str(self)) if watchers["run"] else nullcontext():
            with span("wait for the session's lock", "wait"):
                self._lock.acquire()
            try:
                if self._closed:
                    raise UsageError("the session is closed")
                with self.backend.queue, np.errstate(all="ignore"):
                    yield
            finally:
                self._cache.weights.end_run()
                self._lock.release()

    def _read(self, inputs: Inputs) -> InputRows:
        with span("read inputs", "convert"):
            return read_inputs(self.network, inputs, self.backend)

    def _begin_shared(self, inputs: Inputs, total: int | None = None) -> tuple[InputRows, Plan, Seconds]:
        """Read rows of a run of `total` rows, and plan for them; return them, the plan, and the time."""
        with self._exclusive("plan"):
            timer, self._unspent = Timer(*self._unspent), ()
            rows = self._read(inputs)
            if not rows.on_host:
                raise UsageError("the rows are on a GPU; several devices can share only rows in the host's memory")
            rows = rows if total is None else replace(rows, total=total)
            with section(timer, "plan", "plan"):
                plan = self._cache.plan_of(rows)
            return rows, plan, timer.seconds()

    def _learn(self, other: Session) -> None:
        with self._lock:
            self._cache.learn(other._cache)

    def _run_rows(self, rows: InputRows, first: int, last: int, size: int, counted: bool, report: Report) -> Result:
        """Run rows `first` to `last`, at most `size` at a time; the result's categories are counted from `first`."""
        with self._exclusive("run"):
            timer = Timer()
            size = min(size, self._cache.batch_size(rows.count))
            result = run_rows(self._cache, rows, first, last, size, counted, timer, report)
            self.backend.queue.wait()  # other threads read the surviving rows on the device
            return replace(result, seconds=timer.seconds())

    def _fill(self, rows: InputRows, first: int, last: int, target_of: Callable[[Any], Array], report: Report) -> None:
        """Write the outputs of rows `first` to `last` into the matrix that `target_of` returns for their type."""
        with self._exclusive("call"):
            compute_outputs(self._cache, rows, first, last, target_of, report)


def plan(network: NetworkSource, inputs: Inputs, **options: Unpack[NamedOptions]) -> Plan:
    """Decide how a network is run on some inputs; kernels may be timed on them.

    Errors are those of `Session` and `Session.plan`.

    Parameters
    ----------
    network : Network, or a model in another form
        As `Session` takes it.
    inputs : array_like, CSR, sparse or dense array of any library
        As `Session` takes them: of shape (samples, network.inputs).
    **options : Options
        As `Session` takes them.

    Returns
    -------
    Plan
        What `str` says in words, and `to_dict` in plain values.
    """
    return Session(network, **options).plan(inputs)
