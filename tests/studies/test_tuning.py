"""Tuning: every choice checked, then timed; the fastest kept, and used from then on."""

from dataclasses import asdict, replace

import numpy as np
import pytest

from sparsenn import backends, infer, radixnet
from sparsenn.backends import Machine, Tunable, tuning_table
from sparsenn.backends.cpu import convolution
from sparsenn.backends.cpu.convolution import launch_im2col_blas
from sparsenn.backends.sizes import about
from sparsenn.backends.tuning_table import FILE, Tuned, TuningWarning, forget, table, tuned, with_tuned_numbers
from sparsenn.engine import Session
from sparsenn.errors import ResourceError, UsageError
from sparsenn.formats import from_dense
from sparsenn.layers import Conv2d
from sparsenn.network import Network
from sparsenn.runtime.storage import package_version
from sparsenn.studies import tuning
from sparsenn.studies.ladder import ladder_for
from sparsenn.studies.measure import Measurement
from sparsenn.studies.measure.meter import HostMeter
from sparsenn.studies.tuning import Trial, TunedSizes, TuningResult, keep, limited, tunable_named, tunables, tune

DEVICE = "A chip, 2 threads"
SIZES = "width 64, rows 32-63"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARSENN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("sparsenn.backends.cpu.host_machine", lambda: Machine(DEVICE, "cpu", 2))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def problem():
    rows = (np.random.default_rng(3).random((40, 64)) < 0.4).astype(np.float32)
    return radixnet(64, 3, radices=(2, 2), kronecker=16, bias=-0.3), from_dense(rows)


TUNABLE = {
    *(("panel", "cpu"), ("conv_im2col_blas", "cpu"), ("coarsened", "cuda"), ("warp_vote_coarsened", "cuda")),
    ("conv_swept", "cuda"),
}
"""Names and devices of all kernels with numbers to tune."""


def written(*entries):
    tuning_table.write_record(FILE, tuning_table.VERSION, {"entries": [asdict(found) for found in entries]})


# ---- What can be tuned ------------------------------------------------------------------------------------------


def test_every_tunable_is_a_rung_and_takes_its_own_choices():
    assert {(found.name, found.device) for found in tunables()} == TUNABLE
    for found in (kernel.tunable for kernel in tunables()):
        choices = list(found.combinations())
        assert len(choices) == np.prod([len(values) for values in found.parameters.values()]) >= 2
        assert all(map(found.takes, choices))
        assert callable(found.launch_with(choices[0]))
        name = next(iter(found.parameters))
        assert not found.takes({})
        assert not found.takes(choices[0] | {name: -1})
        assert not found.takes(choices[0] | {"novel": 1})


def test_fewer_values_can_be_tried():
    panels = tunable_named("panel", "cpu")
    fewer = limited(panels, {"lanes": (64, 8)})
    assert [choice["lanes"] for choice in fewer.tunable.combinations()] == [64] * 3 + [8] * 3
    assert limited(panels, {}).tunable.parameters == panels.tunable.parameters
    with pytest.raises(UsageError, match=r"unknown number of panel 'lane'; did you mean 'lanes'"):
        limited(panels, {"lane": (8,)})
    with pytest.raises(UsageError, match="lanes of 9 cannot be tried; panel takes 8, 16, 32, 64, 128, 256, 512"):
        limited(panels, {"lanes": (8, 9)})


def test_sweeps_of_ladders_can_be_tuned():
    found = tunable_named("coarsened", "cuda")
    assert found.operation == "spmspm"
    assert {10, 100} <= set(found.tunable.parameters["rows a thread"])


def test_a_tunable_is_found_by_its_name():
    assert tunable_named("panel", "cpu") is tunable_named("panel", "cpu", "spmspm")
    assert tunable_named("panel", "cpu") is backends.kernel_named("spmspm", "panel", "cpu")
    with pytest.raises(UsageError, match=r"unknown cpu kernel that can be tuned 'pannel'; did you mean 'panel'"):
        tunable_named("pannel", "cpu")
    with pytest.raises(UsageError, match="unknown cpu kernel for conv2d to tune 'panel'"):
        tunable_named("panel", "cpu", "conv2d")


def test_a_name_of_several_operations_needs_one(monkeypatch):
    both = [replace(tunable_named("panel", "cpu"), operation=name) for name in ("conv2d", "gemm")]
    monkeypatch.setattr(tuning, "kernels", lambda device: both)
    with pytest.raises(UsageError, match="panel is a cpu kernel of conv2d, gemm; say which by --operation"):
        tunable_named("panel", "cpu")
    assert tunable_named("panel", "cpu", "gemm") is both[1]


def test_counts_share_words_from_one_power_of_two_to_the_next():
    assert [about(count) for count in (0, 1, 2, 3, 4, 1023, 1024)] == ["0", "1", "2-3", "2-3", "4-7", "512-1023",
                                                                       "1024-2047"]  # fmt: skip


@pytest.mark.parametrize("images", [0, 1, 7])
def test_a_convolution_is_the_same_in_pieces_of_any_size(images):
    random = np.random.default_rng(0)
    weights = random.standard_normal((3, 2, 3, 3)).astype(np.float32)
    layer, given = Conv2d(weights, padding=1), random.standard_normal((images, 2, 5, 6)).astype(np.float32)
    expected = launch_im2col_blas(layer, given)
    for piece in (1, 4 * 18 * 30, 10 * 4 * 18 * 30):
        found = launch_im2col_blas(layer, given, piece_bytes=piece)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert tunable_named("conv_im2col_blas", "cpu").tunable.sizes(layer, given) == (
        f"images {about(images)} of 2x5x6, filters 3x2x3x3, stride 1x1, padding 1x1, dilation 1x1"
    )


# ---- Trying -----------------------------------------------------------------------------------------------------


def test_every_choice_of_a_rung_is_checked_and_timed(problem):
    done = []
    panels = tunable_named("panel", "cpu")
    result = tune(panels, problem, device="cpu", runs=2, progress=lambda *step: done.append(step))
    assert (result.device, result.operation, result.rung, result.runs) == (DEVICE, "spmspm", "panel", 2)
    assert result.correct
    assert [found.sizes for found in result.found] == [SIZES]
    (found,) = result.found
    assert [trial.parameters for trial in found.trials] == [{}, *panels.tunable.combinations()]
    assert all(trial.seconds > 0 and trial.error < 1e-5 and trial.refused is None for trial in found.trials)
    assert found.best.seconds == min(trial.seconds for trial in found.trials)
    total = len(found.trials)
    assert done[-1] == ("stage 3: choices checked", total, total)
    assert len(done) == 3 * (total - 1)


@pytest.fixture
def clocked(monkeypatch):
    """A kernel whose time is the number it is launched with; as it comes, 7."""
    launched = []
    scipy = backends.kernel_named("spmspm", "scipy", "cpu")
    good = scipy.launch

    def launch_with(numbers):
        def launch(step):
            launched.append(numbers["n"])
            output = good(step)
            if numbers["n"] == 1:
                values = output.features.expanded_values() + np.float32(0.1)
                return replace(output, features=replace(output.features, values=values))
            if numbers["n"] == 2:
                raise UsageError("2 is too few")
            return output

        return launch

    def measure(self, operation, work):
        launched.append(7)
        output = work()
        return Measurement(output, float(launched[-1]))

    monkeypatch.setattr(HostMeter, "measure", measure)
    tunable = Tunable(
        parameters={"n": (1, 2, 3, 5, 9)},
        launch_with=launch_with,
        sizes=lambda step: f"first layer of {step.stack.layers[0].inputs}",
        fits=lambda numbers, step: "3 never fits" if numbers["n"] == 3 else None,
    )
    return replace(scipy, tunable=tunable)


def test_the_fastest_that_is_right_wins(problem, clocked):
    (found,) = tune(clocked, problem, device="cpu", runs=3).found
    assert found.sizes == "first layer of 64"
    seconds = {trial.parameters.get("n"): trial.seconds for trial in found.trials}
    assert seconds == {None: 21.0, 1: None, 2: None, 3: None, 5: 15.0, 9: 27.0}  # of three layers
    assert [trial.refused for trial in found.trials] == [None, None, "2 is too few", "3 never fits", None, None]
    assert [trial.correct for trial in found.trials] == [True, False, True, True, True, True]
    assert found.best.parameters == {"n": 5}
    assert found.trials[1].error > 0.05


def test_a_kernel_that_was_wrong_once_is_wrong(problem, clocked):
    """The second layer's outputs are all zero, whatever the first one's."""

    def wrong(step):
        output = clocked.launch(step)
        values = output.features.expanded_values() + np.float32(0.1)
        return replace(output, features=replace(output.features, values=values))

    (first, second, *_), inputs = problem
    dying = Network((first, replace(second, bias=-1000.0)))
    result = tune(limited(replace(clocked, launch=wrong), {"n": (5,)}), (dying, inputs), device="cpu", runs=1)
    untuned = result.found[0].untuned
    assert (untuned.correct, untuned.seconds) == (False, None)
    assert untuned.error > 0.05
    assert not result.correct


def test_stages_of_other_sizes_are_tuned_by_themselves(problem, clocked):
    numbered = iter(range(3))
    by_stage = replace(clocked.tunable, sizes=lambda step: f"stage {min(1, next(numbered))}")
    result = tune(replace(clocked, tunable=by_stage), problem, device="cpu", runs=1)
    assert [found.sizes for found in result.found] == ["stage 0", "stage 1"]
    assert [found.best.seconds for found in result.found] == [5.0, 10.0]
    assert not result.correct


def test_a_kernel_that_fails_as_it_comes_is_no_result(problem, clocked):
    def broken(step):
        raise UsageError("cannot run at all")

    with pytest.raises(UsageError, match="cannot run at all"):
        tune(replace(clocked, launch=broken), problem, device="cpu", runs=1)


def test_a_convolution_on_the_host_is_tuned_and_used(monkeypatch):
    layer, images = ladder_for("conv2d").problem(5, (2, 64, 64, 3, 3, 1), 0)
    pieces = limited(tunable_named("conv_im2col_blas", "cpu"), {"piece_bytes": (1 << 18, 1 << 20)})
    result = tune(pieces, (layer, images), device="cpu", runs=2)
    assert result.correct
    (found,) = result.found
    assert found.sizes == "images 4-7 of 2x64x64, filters 3x2x3x3, stride 1x1, padding 1x1, dilation 1x1"
    (kept,) = keep(result)
    together, cut = [], convolution.chunks

    def chunks(total, size):
        together.append(size)
        return cut(total, size)

    monkeypatch.setattr(convolution, "chunks", chunks)
    for numbers, expected in (({}, 5), ({"piece_bytes": 1 << 18}, 1)):
        written(replace(kept, parameters=numbers))
        session = Session(Network((layer,), image=(2, 64, 64)), device="cpu", kernel="conv_im2col_blas")
        together.clear()
        assert session(images).shape == (5, 3 * 64 * 64)
        assert together == [expected]
        assert ("with numbers tuned for images 4-7 of 2x64x64" in str(session.plan(images))) == bool(numbers)


def test_bad_usage_is_refused(problem, clocked):
    with pytest.raises(UsageError, match="0 runs measure nothing"):
        tune(clocked, problem, device="cpu", runs=0)
    with pytest.raises(UsageError, match="scipy is a kernel for cpu; use --device cpu"):
        tune(clocked, problem, device="reference", runs=1)
    picky = replace(clocked, why_not=lambda machine, network, inputs: f"too small for {machine.name}")
    with pytest.raises(UsageError, match=f"scipy cannot run this: too small for {DEVICE}"):
        tune(picky, problem, device="cpu", runs=1)


@pytest.mark.gpu
def test_rungs_on_a_gpu_are_tuned_and_used(problem):
    coarsened = limited(tunable_named("coarsened", "cuda"), {"rows a thread": (1, 100)})
    result = tune(coarsened, problem, device="cuda", runs=3)
    assert result.correct
    assert "thread" not in result.device
    assert [trial.parameters.get("rows a thread") for trial in result.found[0].trials] == [None, 1, 100]
    assert all(trial.seconds > 0 for found in result.found for trial in found.trials)
    kept = keep(result)
    backend, kernels = backends.backend_for("cuda"), backends.kernels("spmspm", "cuda")
    changed = with_tuned_numbers(kernels, backend)
    assert [one.name for one in changed if one not in kernels] == ["coarsened"] * any(one.parameters for one in kept)
    network, inputs = problem
    switches = {"device": "cuda", "kernel": "coarsened", "merging": False, "deduplication": False}
    found = infer(network, inputs, **switches).outputs.to_scipy().toarray()
    forget()
    np.testing.assert_array_equal(found, infer(network, inputs, **switches).outputs.to_scipy().toarray())


@pytest.mark.gpu
def test_a_convolution_on_a_gpu_is_tuned():
    swept = limited(tunable_named("conv_swept", "cuda"), {"tile": (8, 16), "pixels": (4, 17), "filters": (2, 16)})
    given = ladder_for("conv2d").problem(5, (2, 20, 33, 6, 3, 1), 0)
    result = tune(swept, given, device="cuda", runs=2)
    assert result.correct
    (found,) = result.found
    assert found.sizes == "images 4-7 of 2x20x33, filters 6x2x3x3, stride 1x1, padding 1x1, dilation 1x1"
    assert len(found.trials) == 9
    for trial in found.trials[1:]:
        assert (trial.refused is None) == (trial.parameters["pixels"] * trial.parameters["filters"] <= 128)
        assert (trial.seconds is None) == (trial.refused is not None)
    (kept,) = keep(result)
    assert tuned("conv2d", "conv_swept", result.device, found.sizes) == (kept.parameters or None)
    network = Network((given[0],), image=(2, 20, 33))
    before = Session(network, device="cuda", kernel="conv_swept")(given[1])
    written(replace(kept, parameters={"tile": 8, "pixels": 4, "filters": 2}))
    after = Session(network, device="cuda", kernel="conv_swept")(given[1])
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-5)


# ---- Keeping ----------------------------------------------------------------------------------------------------


def result_of(*trials, sizes=SIZES):
    return TuningResult(DEVICE, "spmspm", "panel", 3, (TunedSizes(sizes, trials),))


def test_the_best_is_kept_in_place_of_what_was_kept(folder):
    assert table() == ()
    slow, quick = {"lanes": 8, "chunk_rows": 512}, {"lanes": 16, "chunk_rows": 512}
    untuned = Trial({}, 2.0, 0.0, correct=True)
    kept = keep(result_of(untuned, Trial(slow, 1.0, 0.0, correct=True)))
    expected = Tuned(DEVICE, "spmspm", "panel", SIZES, slow, 1.0, 2.0, 3, package_version())
    assert kept == table() == (expected,)
    keep(result_of(untuned, Trial(slow, 1.0, 0.0, correct=True), sizes="others"))
    (better,) = keep(result_of(untuned, Trial(quick, 0.5, 0.0, correct=True)))
    assert better.parameters == quick
    assert [found.sizes for found in table()] == ["others", SIZES]
    assert tuned("spmspm", "panel", DEVICE, SIZES) == quick
    assert tuned("spmspm", "panel", DEVICE, "others") == slow
    assert tuned("spmspm", "panel", "another chip", SIZES) is None
    assert tuned("spmspm", "scipy", DEVICE, SIZES) is None
    assert [item.name for item in folder.iterdir()] == [FILE]


def test_a_rung_that_is_best_as_it_comes_is_kept_as_that():
    worse = Trial({"lanes": 8, "chunk_rows": 512}, 3.0, 0.0, correct=True)
    (kept,) = keep(result_of(Trial({}, 2.0, 0.0, correct=True), worse))
    assert kept.parameters == {}
    assert tuned("spmspm", "panel", DEVICE, SIZES) is None


def test_nothing_is_kept_of_what_is_wrong():
    wrong = Trial({}, None, 1.0, correct=False)
    assert keep(result_of(wrong)) == ()
    assert keep(result_of(wrong, Trial({"lanes": 8, "chunk_rows": 512}, 1.0, 0.0, correct=True))) == ()


def test_a_damaged_table_is_begun_anew(folder):
    folder.mkdir()
    (folder / FILE).write_text("{")
    with pytest.warns(TuningWarning, match="kept numbers are not used"):
        kept = keep(result_of(Trial({}, 2.0, 0.0, correct=True)))
    assert table() == kept


def test_a_table_that_cannot_be_written_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SPARSENN_CACHE", str(tmp_path / "file" / "cache"))
    with (
        pytest.raises(ResourceError, match="set SPARSENN_CACHE to a folder"),
        pytest.warns(TuningWarning, match="cannot read"),
    ):
        keep(result_of(Trial({}, 2.0, 0.0, correct=True)))
