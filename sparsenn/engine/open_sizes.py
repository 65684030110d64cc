"""Sessions of ONNX models whose inputs have open sizes, such as the length of sequences: one for each size."""

from __future__ import annotations

import copy
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from sparsenn.backends import select_backend
from sparsenn.engine.inputs import Inputs
from sparsenn.engine.options import read_options
from sparsenn.engine.plan import Plan
from sparsenn.engine.session import Session
from sparsenn.errors import InputError, OpenSizesError, ShapeError, UsageError
from sparsenn.io.importers.onnx.open_graph import OpenGraph
from sparsenn.io.networks import NetworkSource, inputs_by_name, network_of, read_with_sizes, sample_shapes
from sparsenn.network import Network
from sparsenn.runtime.progress import ProgressOption, silent
from sparsenn.runtime.workers import renew_after_fork

MOST_SIZES = 8  # whose sessions are cached, each with its weights

Shapes = tuple[tuple[str, tuple[int, ...]], ...]


def _of_sizes(name: str) -> Callable[..., Any]:
    def method(self: SessionBySize, inputs: Any, *arguments: Any, **options: Any) -> Any:
        return getattr(self.of_sizes(inputs), name)(inputs, *arguments, **options)

    return method


class SessionBySize(Session):
    """A session that computes in one for the sizes of each call's inputs; all else is that of the last call's."""

    def __init__(self, model: NetworkSource, options: Mapping[str, Any], error: OpenSizesError) -> None:
        self._model, self._named_options, self._error = _held(model), dict(options), error
        if (asked := read_options(options)).machine is None:  # a plan's device need not be here
            select_backend(asked.device, asked.kernel, None, None)
        self._sessions: OrderedDict[Shapes, Session] = OrderedDict()
        self._is_one_sample = self._is_ended = False
        self._graph: OpenGraph | bool | None = None  # for sizes other than the first; False where there is none
        self._after_fork()
        renew_after_fork(self)

    bind, plan, run = map(_of_sizes, ("bind", "plan", "run"))
    _of = Session._of

    def __call__(self, inputs: Inputs | None = None, *, form: str | None = None, **named: Inputs) -> Any:
        """Return the outputs, as `Session` does; ONNX Runtime computes those of sizes beyond `MOST_SIZES`."""
        arrays = named if inputs is None else inputs
        outputs = None if form or (named and inputs is not None) else self._of_further_sizes(arrays)
        return self.of_sizes(arrays)(inputs, form=form, **named) if outputs is None else outputs

    def on(self, device: str, **options: Any) -> Session:
        """Return a session of the same model on another device, with the sizes of its own calls."""
        return Session(self._model, **{**self._named_options, "device": device, **options})

    def warm_up(self, rows: Any, *, progress: ProgressOption = silent) -> Plan:
        """Warm up for inputs, or for a number of rows with the sizes of the last call."""
        return (self._last if isinstance(rows, int) else self.of_sizes(rows)).warm_up(rows, progress=progress)

    def __getattr__(self, name: str) -> Any:
        if name not in ("_compiled", "_cache", "_lock", "_closed", "_unspent"):
            raise AttributeError(f"a session has no attribute {name!r}")
        return getattr(self._last, name)

    @property
    def _last(self) -> Session:
        if not self._sessions:
            raise UsageError(f"the first call, or warm_up(inputs), fixes the sizes of the network: {self._error}")
        return next(reversed(self._sessions.values()))

    @property
    def nbytes(self) -> int:
        """Memory of the cached sessions, in bytes, without ONNX Runtime's."""
        return sum(session.nbytes for session in tuple(self._sessions.values()))

    def _after_fork(self) -> None:
        self._guard = threading.Lock()

    def _repr_html_(self) -> str:
        return super()._repr_html_() if self._sessions else str(self)

    def of_sizes(self, inputs: Inputs) -> Session:
        """Return the session for the sizes of inputs, made if it is not cached."""
        with self._guard:
            if self._is_ended:
                raise UsageError("the session is closed")
            key = self._shapes(inputs)
            if key not in self._sessions:
                made = Session(self._network_for(inputs, key), **self._named_options)
                key = self._shapes(inputs)
                if len(self._sessions) >= MOST_SIZES:
                    self._sessions.popitem(last=False)  # whose memory is freed once no other thread calls it
                self._sessions[key] = made
            self._sessions.move_to_end(key)
            return self._sessions[key]

    def _of_further_sizes(self, inputs: Inputs) -> Any:
        """Return outputs for a size that is not among the first `MOST_SIZES`; None where a cached session computes."""
        with self._guard:
            if self._is_ended or self._graph is False:
                return None
            key = self._shapes(inputs)
            if self._graph is None and len(self._sessions) == MOST_SIZES and key not in self._sessions:
                self._graph, self._first = self._checked_graph(inputs, key), frozenset(self._sessions)
            if not isinstance(graph := self._graph, OpenGraph) or key in self._first:
                return None
        outputs = graph.outputs(inputs_by_name(self._error.sizes, inputs))
        if outputs is None:  # which a session refuses, or computes otherwise
            with Session(self._network_for(inputs, key), **self._named_options) as session:
                outputs = session(inputs)
        return outputs

    def _checked_graph(self, inputs: Inputs, shapes: Shapes) -> OpenGraph | bool:
        """Return the graph for all sizes, if it gives the outputs of a session for those of inputs."""
        with Session(self._network_for(inputs, shapes), **self._named_options) as session:
            expected, options = session(inputs), session.options
            if session._compiled.whole_step("dense") and options.memory_limit is None and options.batch_size is None:
                with suppress(InputError):
                    graph = OpenGraph(self._model, session.network.named_outputs, self._is_one_sample)
                    if graph.gives(expected, inputs_by_name(self._error.sizes, inputs)):
                        return graph
        return False

    def _shapes(self, inputs: Inputs) -> Shapes:
        return tuple(sorted(sample_shapes(self._error.sizes, inputs, self._is_one_sample).items()))

    def _network_for(self, inputs: Inputs, shapes: Shapes) -> Network:
        """Return the network for sizes; the first call shows whether all its inputs are one sample."""
        try:
            if self._is_one_sample or self._sessions:
                return network_of(self._model, dict(shapes) or None)
            network, self._is_one_sample = read_with_sizes(partial(network_of, self._model), self._error.sizes, inputs)
            return network
        except InputError as error:
            shown = sample_shapes(self._error.sizes, inputs, is_sample=True)
            raise ShapeError(f"the model cannot be computed for inputs of the sizes {shown}: {error}") from error

    def close(self) -> None:
        """Close the sessions of all sizes."""
        with self._guard:
            self._is_ended, self._graph = True, False
            for session in self._sessions.values():
                session.close()

    def __del__(self) -> None:
        """Leave it to the sessions of all sizes to end."""

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Session, self._model, **self._named_options), ()

    def __str__(self) -> str:
        return super().__str__() if self._sessions else f"a network with open sizes of {', '.join(self._error.sizes)}"

    __repr__ = __str__


def _held(model: NetworkSource) -> NetworkSource:
    """Return a model that later changes of a path's folder, or of an object, do not change."""
    return Path(model).resolve() if isinstance(model, str | os.PathLike) else copy.deepcopy(model)
