"""Measuring: candidate kernels are timed on rows, and the fastest runs from then on.

A network that is one chain is timed as a session's calls run it. Of others, each segment is a network of its own,
timed on random numbers unless it reads the network's rows; the times of convolutions and dense layers do not depend on
values. Segments of equal layers are timed once. Where ONNX Runtime may run the whole network, it is timed beside the
fastest of all segments.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any, cast

import numpy as np

from sparsenn.backends import Features
from sparsenn.backends.contract import LONG_SECONDS
from sparsenn.engine.bound_steps import QUIET
from sparsenn.engine.calls import direct_call
from sparsenn.engine.choosing import CLOSE, RowsShape, Segment, choose_steps, close_alternatives, segments_of
from sparsenn.engine.compiled_network import CompiledNetwork, layer_key
from sparsenn.engine.executable import Executable
from sparsenn.engine.finite import check_inputs
from sparsenn.engine.inputs import packed_inputs, rows_in_order
from sparsenn.engine.plan import Plan, prepared_bytes
from sparsenn.engine.steps import WHOLE, Alternative, Choice, Measured, label_of
from sparsenn.engine.weight_cache import WeightCache
from sparsenn.errors import InputError, OutOfMemoryError, UsageError
from sparsenn.formats import CSR, Array
from sparsenn.formats.named_shapes import cut_columns
from sparsenn.layers import SparseLinear, positions_of
from sparsenn.runtime.spans import span
from sparsenn.runtime.timing import compile_seconds

MAX_MEASURED_ROWS = {True: 2048, False: 65_536}  # rows that kernels are timed on, at most: in host memory, and on a GPU
VERY_LONG_SECONDS = 2.0  # a run of the whole network that takes longer is not repeated
WARM_SECONDS = 1e-3  # runs that are not timed before those that are: the host queues early calls more slowly
MIN_RUNS, MAX_RUNS = 5, 21  # of each candidate of a segment
LEAST_SECONDS = 0.02
"""Time that candidates of a whole network are run for at least, one after the other: a processor may be slow for
milliseconds, and not equally so for each kernel."""
MAX_SECONDS = 0.1  # time after which candidates of a segment are not run again, once each has `MIN_RUNS`
MAX_PREPARING_SECONDS = 1.0
"""Time after which no further candidates are prepared, as the best priors come first; but for those whose prior is less
than what has been timed by then."""
HOPELESS = 3.0  # candidates that take more than this multiple of the least time run twice
SLOWER = 1.3  # candidates whose median of `MIN_RUNS` is beyond this multiple of the least are not run again
AGREEMENT = 2 / 3  # the share of runs that an alternative has to win to replace the one of the best prior
REPEATS = 8
"""Runs on a GPU that are timed as one: of a segment, after which no wait for the device follows inside a network, and
of a network so short that a wait varies more than kernels differ."""

SHORT_SECONDS = 1e-4  # of such a network, by its best prior
WHOLE_ROUNDS = 7  # blocks of runs by kernels and by ONNX Runtime, alternately; fewer where one run is long
BLOCK_SECONDS = 0.01  # time of a block of runs
PAUSE_SECONDS = 0.02  # before a block: idle threads of ONNX Runtime spin for up to 15 ms, on cores that kernels need
MAX_RANDOM_VALUES = 1 << 25  # random numbers that a segment is timed on, at most


def open_segments(compiled: CompiledNetwork, rows: RowsShape) -> list[Segment]:
    """Return the segments for which more than one alternative may be the fastest."""
    segments = segments_of(compiled, rows)
    # rows of float16 that have to become float32 are not timed: kernels of a segment take no others
    if rows.form == "half" and not all(any(one.takes_half for one in segment) for segment in segments):
        return []
    return [segment for segment in segments if len(close_alternatives(segment, rows)) > 1]


@dataclass(frozen=True)
class Sample:
    """Rows on the device, on which alternatives for the layers of a network are timed."""

    compiled: CompiledNetwork
    rows: RowsShape
    features: Features
    weights: WeightCache

    def executable(self, alternative: Alternative) -> Executable:
        """Return the steps with weights; rows of zeros leave, and equal rows become one."""
        options, count = replace(self.compiled.options, compaction=True, deduplication=True), self.rows.count
        plan = Plan(replace(self.compiled, options=options), count, None, self.rows, alternative, count)
        return Executable(plan, self.weights)

    def fitting(self, segment: Segment) -> Segment:
        """Return the close alternatives whose weights memory holds; all of them, if it holds none."""
        close, free = close_alternatives(segment, self.rows), self.compiled.weight_memory
        return tuple(one for one in close if sum(prepared_bytes(self.compiled, *one)) <= free) or close

    @contextmanager
    def apart(self, segment: Segment) -> Iterator[tuple[Sample, Segment]]:
        """Make the layers of a segment a network of their own, whose weights are dropped afterwards."""
        compiled, (first, last) = self.compiled, segment[0].layers
        network, rows, features = compiled.merged.network, self.rows, self.features
        part, positions = compiled.part(first, last), positions_of(network[first])
        width, most = part.network.inputs, max(1, MAX_MEASURED_ROWS[compiled.backend.in_host_memory] // positions)
        if 0 not in network.nodes[first].sources:
            rows = RowsShape(positions * max(1, min(rows.count, most, MAX_RANDOM_VALUES // (positions * width))))
            features = compiled.backend.place(_random_rows(rows.count, width))
        elif positions > 1:
            features = compiled.backend.as_dense(features)[:most].reshape(-1, width)
            rows = RowsShape(int(features.shape[0]))
        fitting = replace(self, rows=rows).fitting(segment)
        with closing(WeightCache(compiled.backend)) as weights:
            own = Sample(part, rows, features, weights)
            yield own, tuple(one.moved(-first) for one in fitting)


def measure(segments: Sequence[Segment], sample: Sample) -> Choice:
    """Time the close alternatives of segments, then ONNX Runtime where it may run all layers; return the fastest."""
    compiled, network = sample.compiled, sample.compiled.merged.network
    equal: dict[Any, Measured] = {}
    choice: Choice = {}
    keys = [(*(layer_key(network, at) for at in range(*each[0].layers)),) for each in segments]
    if compiled.backend.queue.rehearses and len(segments) > 1:
        _rehearse_apart(dict(zip(reversed(keys), reversed(segments), strict=True)).values(), sample)
    for segment, key in zip(segments, keys, strict=True):
        first, last = segment[0].layers
        if key not in equal:
            with span(f"measure layers {first + 1} to {last}", "plan"):
                whole = (first, last) == (0, len(network))
                is_short = not whole or segment[0].prior < SHORT_SECONDS
                repeats = REPEATS if is_short and not compiled.backend.in_host_memory else 1
                if whole:
                    found = _measured(sample, sample.fitting(segment), repeats, LEAST_SECONDS)
                else:
                    with sample.apart(segment) as (own, alternatives):
                        found = _measured(own, alternatives, repeats)
                    found = replace(found, rows=max(1, found.rows // positions_of(network[first])))
                equal[key] = found
        shift = first - equal[key].names[0][0]
        names = tuple((start + shift, end + shift, name) for start, end, name in equal[key].names)
        choice[first, last] = replace(equal[key], names=names)
    whole_step = compiled.whole_step(sample.rows.form)
    if whole_step is not None:
        with span("measure ONNX Runtime", "plan"):
            steps = Alternative(choose_steps(compiled, sample.rows, choice))
            fastest = _beside_whole(sample, steps, Alternative((whole_step,)))
        if fastest is not None:
            choice[WHOLE] = fastest
    return choice


def _beside_whole(sample: Sample, own: Alternative, whole: Alternative) -> Measured | None:
    """Time ONNX Runtime beside the steps of a choice, and return the faster; None where it cannot run the network."""
    compiled, weights, inputs = sample.compiled, sample.weights, cast(Any, sample.features)
    if sum(prepared_bytes(compiled, *own)) + sum(prepared_bytes(compiled, *whole)) > compiled.weight_memory:
        return None
    known, count, shapes = weights.keys, int(inputs.shape[0]), compiled.network.named_inputs or {}
    if len(shapes) > 1:  # as a caller has them, an array for each
        inputs = {name: np.ascontiguousarray(array) for name, array in cut_columns(shapes, inputs).items()}
    times: dict[Alternative, list[float]] = {own: [], whole: []}
    fastest, measured = own, None
    with suppress(OutOfMemoryError, MemoryError, InputError, UsageError):
        trials = {one: _call_of(sample.executable(one), count, inputs) for one in times}
        for number in range(WHOLE_ROUNDS):
            for one, trial in trials.items():
                times[one].append(_timed_block(trial))
            least, most = sorted(map(min, times.values()))
            clear = SLOWER if most > LONG_SECONDS else HOPELESS
            if most > clear * least or most > VERY_LONG_SECONDS or (number >= 2 and most > LONG_SECONDS):
                break
        # steps have to be faster in most rounds: else calls are as fast as in the program that the network is from
        fastest, measured = _fastest(whole, times)
        measured = replace(measured, rows=count)
    weights.retain(known, fastest)
    return measured


def _call_of(executable: Executable, count: int, inputs: Any) -> Callable[[], Any]:
    """Return a function that runs an executable as a session's calls do: it has run, and may take microseconds."""
    network = executable.plan.network

    def call() -> None:
        rows = packed_inputs(network, inputs) if isinstance(inputs, dict) else inputs
        check_inputs(rows)
        with np.errstate(all="ignore"):
            executable.outputs(rows, QUIET)

    call()
    foreign = executable.foreign_network
    if foreign is None or rows_in_order(network, inputs) != count:
        return call
    direct = partial(direct_call(network, inputs, count, foreign, executable.plan.options.check_finite), inputs)
    return call if direct() is None else direct


def _timed_block(trial: Callable[[], Any]) -> float:
    time.sleep(PAUSE_SECONDS)
    times = [_timed(trial)]
    stop = time.perf_counter() + BLOCK_SECONDS
    while times[0] < LONG_SECONDS and (len(times) < 2 or time.perf_counter() < stop):
        times.append(_timed(trial))
    return median(times[1:] or times)


def _rehearse_apart(segments: Iterable[Segment], sample: Sample) -> None:
    """Have the kernels of segments of dense layers compiled side by side, before any is timed."""
    for segment in segments:
        layers = sample.compiled.merged.network.layers[slice(*segment[0].layers)]
        if not any(isinstance(layer, SparseLinear) for layer in layers):  # whose weights take longer to prepare
            with suppress(OutOfMemoryError, MemoryError), sample.apart(segment) as (own, alternatives):
                for one in alternatives:
                    own.executable(one).rehearse(own.features)


def telling_rows(compiled: CompiledNetwork, features: Features) -> Features | None:
    """Return rows for times that hold for others, random in place of zero or equal ones; None for NaN or no entries."""
    if isinstance(features, CSR):
        return features if features.nnz else None
    largest, finite = compiled.backend.largest_number(features)
    if not finite:
        return None
    ends = [compiled.backend.fetch(features[place : place + 1]) for place in (0, features.shape[0] - 1)]
    if largest > 0 and (features.shape[0] == 1 or not np.array_equal(*ends)):
        return features
    return compiled.backend.place(_random_rows(*features.shape))


def _random_rows(count: int, width: int) -> Array:
    """Return normal numbers, float32, which repeat themselves in large matrices."""
    block = np.random.default_rng(0).standard_normal(min(count * width, 1 << 18), np.float32)
    return np.resize(block, (count, width))


def _measured(sample: Sample, alternatives: Segment, repeats: int, least_seconds: float = 0.0) -> Measured:
    """Time alternatives one after the other, again and again; return the fastest, or the first if memory holds none."""
    queue, features, known = sample.compiled.backend.queue, sample.features, sample.weights.keys
    trials: dict[Alternative, Callable[[], Any]] = {}
    times: dict[Alternative, list[float]] = {}
    start = time.perf_counter() - compile_seconds()

    def begin(ready: dict[Alternative, Executable]) -> None:
        """Time the first runs of alternatives that are ready."""
        queue.end_rehearsals()  # which would disturb what is timed
        for one in list(ready):
            trial = _trial_of(ready.pop(one), features, repeats)
            with suppress(OutOfMemoryError, MemoryError):
                trial()  # prepares and compiles
                second = _timed(trial)  # a graph is captured
                end = time.perf_counter() + WARM_SECONDS
                while time.perf_counter() < end:
                    trial()
                times[one] = [second] if second > LONG_SECONDS else [_timed(trial), _timed(trial)]
                trials[one] = trial

    def least() -> float:
        return min(map(min, times.values()), default=math.inf)

    # those that skip rows come first: others are not prepared where even half of their prior is longer
    for skips in (True, False):
        ready: dict[Alternative, Executable] = {}
        limit = math.inf if skips else CLOSE * least()
        for one in alternatives:
            prior = one.prior * repeats
            if one.skips_rows != skips or prior > limit:
                continue
            is_late = time.perf_counter() - compile_seconds() > start + MAX_PREPARING_SECONDS
            if is_late and (ready or times) and one is not alternatives[0]:
                begin(ready)
                if times and prior >= least():
                    continue
            with suppress(OutOfMemoryError, MemoryError):
                executable = sample.executable(one)
                executable.rehearse(features)
                ready[one] = executable
        begin(ready)
    queue.before_drop()
    with suppress(OutOfMemoryError, MemoryError):
        _time_in_turns(trials, times, least_seconds)
    fastest, measured = _fastest(alternatives[0], {one: [run / repeats for run in runs] for one, runs in times.items()})
    queue.before_drop()
    trials.clear()
    sample.weights.retain(known, fastest)
    return replace(measured, rows=int(features.shape[0]))


def _trial_of(executable: Executable, features: Any, repeats: int) -> Callable[[], None]:
    """Return a function that runs an executable until the device is done: from its second run on, a replay."""
    backend, has_run = executable.plan.backend, False
    is_replayed = repeats > 1 and executable.is_capturable and not isinstance(features, CSR)
    replay = backend.queue.replay(features.shape, on_host=False) if is_replayed else None

    def repeat(rows: Any) -> tuple[Any]:
        outputs = None
        for _ in range(repeats):
            outputs = executable.outputs(rows, QUIET, replays=repeats == 1)
        return (outputs,)

    def run() -> None:
        nonlocal has_run
        if replay is None or not has_run or replay(repeat, features) is None:
            repeat(features)
        has_run = True
        backend.queue.wait()

    return run


def _timed(trial: Callable[[], Any]) -> float:
    start = time.perf_counter()
    trial()
    return time.perf_counter() - start


def _time_in_turns(
    trials: dict[Alternative, Callable[[], Any]], times: dict[Alternative, list[float]], least_seconds: float
) -> None:
    start = time.perf_counter()
    least = min(map(min, times.values()), default=0.0)
    for one, trial in trials.items():  # once more, as both runs may have been in one pause of another program's making
        if HOPELESS * least < min(times[one]) < LONG_SECONDS:
            times[one][0] = min(times[one][0], _timed(trial))
    running = [one for one in trials if min(times[one]) <= HOPELESS * least]
    for run in itertools.count(2):
        enough, elapsed = 3 if least > LONG_SECONDS else MIN_RUNS, time.perf_counter() - start
        is_late = (run >= enough and elapsed > MAX_SECONDS) or (run >= MAX_RUNS and elapsed > least_seconds)
        if len(running) < 2 or is_late:
            return
        for one in running:
            times[one].append(_timed(trials[one]))
        if run + 1 >= MIN_RUNS:
            least = min(median(times[one]) for one in running)
            running = [one for one in running if median(times[one]) <= SLOWER * least]


def _fastest(first: Alternative, times: dict[Alternative, list[float]]) -> tuple[Alternative, Measured]:
    """Return the alternative with the least median; one of another order of sums only where it gains enough."""
    if not times:
        return first, Measured(first.names, first.prior)
    medians = {one: median(seconds) for one, seconds in times.items()}
    ordered = sorted(times, key=lambda one: one.weighed(medians[one]))
    if first in times and first is not ordered[0] and first.in_order >= ordered[0].in_order:
        wins, runs = _wins(times[ordered[0]], times[first])
        if wins < AGREEMENT * runs:
            ordered = [first, *(one for one in ordered if one is not first)]
    best, *others = ordered
    wins, runs = _wins(times[best], times[others[0]]) if others else (0, 0)
    known: dict[str, float] = {}
    for one in others:
        known.setdefault(label_of(one.names), medians[one])
    return best, Measured(best.names, medians[best], tuple(known.items()), wins, runs)


def _wins(times: Sequence[float], others: Sequence[float]) -> tuple[int, int]:
    """Return in how many runs, one beside the other, the first was faster; and how many there were."""
    pairs = list(zip(times, others, strict=False))
    return sum(own < other for own, other in pairs), len(pairs)
