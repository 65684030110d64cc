"""Running ladders: the rungs of the registry, checked, then timed."""

from dataclasses import replace

import numpy as np
import pytest

from sparsenn import backends, radixnet
from sparsenn.backends import oracle
from sparsenn.backends.cuda.sparse import conversion
from sparsenn.backends.machine import H200
from sparsenn.backends.trainer import PRECISIONS
from sparsenn.errors import UsageError
from sparsenn.formats import from_dense
from sparsenn.studies.ladder import ladder_for, ladders, rungs_of
from sparsenn.studies.measure import Roofs
from sparsenn.studies.run import run_ladder

ROOFS = Roofs(1e10, 1e11, "L3", 1 << 25, {"float32": 1e9})


@pytest.fixture(scope="module")
def problem():
    digits = (np.random.default_rng(3).random((40, 64)) < 0.4).astype(np.float32)
    return radixnet(64, 4, radices=(2, 2), kronecker=16, bias=-0.3), from_dense(digits)


def test_every_rung_is_checked_and_timed_on_every_layer(problem):
    done = []
    result = run_ladder("spmspm", *problem, device="cpu", runs=3, roofs=ROOFS, progress=lambda *step: done.append(step))
    assert [rung.name for rung in result.rungs] == ["sequential", "scipy", "scatter", "panel"]
    assert done == [("ladder", number, 4) for number in range(1, 5)]
    assert (result.stage, result.stages, result.rows, result.runs) == ("layer", 4, 40, 3)
    assert result.correct
    for rung in result.rungs:
        assert rung.error < 1e-5
        assert len(rung.stage_seconds) == 4
        assert 0 < min(rung.stage_seconds) <= sum(rung.stage_seconds)
        assert rung.seconds > 0
        assert rung.spread >= 0
        assert rung.kernel_seconds is rung.registers is rung.shared_bytes is None
        assert result.floor_share(rung) == result.floor_seconds / rung.seconds
    assert result.speedup(result.rungs[0]) == 1


def test_the_floor_is_that_of_the_least_work(problem):
    network, inputs = problem
    result = run_ladder("spmspm", network.prefix(1), inputs, device="reference", runs=1, roofs=ROOFS)
    expected = oracle.forward(network[0], inputs.to_scipy())
    degrees = np.bincount(network[0].weights.indices, minlength=64)
    assert result.multiply_adds == degrees[inputs.indices].sum()
    values = 4 * (1 if np.ptp(expected.data) == 0 else expected.nnz)
    assert result.bytes == inputs.nbytes + network[0].weights.nbytes + 8 * 41 + 2 * expected.nnz + values
    assert result.floor_seconds == max(result.bytes / 1e10, result.multiply_adds / 1e9)


def test_a_rung_that_is_wrong_is_found_and_not_timed(problem, monkeypatch):
    good = backends.kernel_named("spmspm", "scipy", "cpu")

    def off_by_little(step):
        output = good.launch(step)
        values = output.features.expanded_values() * np.float32(1 + 1e-3 * (step.stack.layers[0].inputs == 64))
        return replace(output, features=replace(output.features, values=values))

    def nan(step):
        output = good.launch(step)
        return replace(output, features=replace(output.features, values=np.float32([np.nan])))

    for launch in (off_by_little, nan):
        broken = replace(good, name="broken", launch=launch)
        monkeypatch.setattr("sparsenn.studies.run.rungs_of", lambda *_, broken=broken: (good, broken))
        result = run_ladder("spmspm", *problem, device="cpu", runs=1, roofs=ROOFS)
        assert [rung.correct for rung in result.rungs] == [True, False]
        assert not result.correct
        wrong = result.rungs[1]
        assert wrong.stage_seconds == ()
        assert wrong.seconds is wrong.spread is result.speedup(wrong) is result.floor_share(wrong) is None


def test_rungs_that_cannot_run_the_problem_are_left_out(problem, monkeypatch):
    entry = backends.kernel_named("spmspm", "scipy", "cpu")
    picky = replace(entry, name="picky", why_not=lambda machine, network, inputs: f"too small for {machine.name}")
    monkeypatch.setattr("sparsenn.studies.run.rungs_of", lambda *_: (entry, picky))
    result = run_ladder("spmspm", *problem, device="cpu", runs=1, roofs=ROOFS)
    assert [rung.name for rung in result.rungs] == ["scipy"]
    assert result.left_out == (("picky", f"too small for {backends.backend_for('cpu').machine.name}"),)


def test_every_operation_has_a_ladder():
    assert set(ladders()) == set(backends.operations())


@pytest.mark.parametrize("operation", ladders())
def test_every_kernel_is_a_rung_of_its_ladder_once(operation):
    """But those that take all layers at once, which have none to be timed one by one, those of float64, and those that
    cannot run a ladder's problem, of one group."""
    ladder = ladder_for(operation)
    rungs = [rung for every in ladder.rungs.values() for rung in every]
    assert all(rung.device == device for device, every in ladder.rungs.items() for rung in every)
    known = [kernel for kernel in backends.kernels(operation) if kernel.device != "cuda_float64"]
    assert len(rungs) == len({(rung.device, rung.name) for rung in rungs})
    assert all(any(rung is kernel for kernel in known) for rung in rungs)
    beside = {kernel.name for kernel in known if not any(rung is kernel for rung in rungs)}
    in_halves = {*(f"two_of_four_{precision}" for precision in PRECISIONS), "chunks_tf32", "chunks_float16"}
    whole_chains = {"resident", "rows", "gathered_rows", "few_rows", "few_rows_float16"}
    expected = {"spmspm": whole_chains | in_halves, "conv2d": {"conv_depthwise"}}
    assert beside == expected.get(operation, set())
    assert set(ladder.sweeps) <= {rung.name for rung in rungs}


def test_a_sweep_is_the_first_rung_and_one_for_each_value():
    names = [rung.name for rung in rungs_of("spmspm", "cuda", sweep=True)]
    assert names[0] == "naive"
    assert "coarsened, rows a thread 100" in names
    assert "warp_vote_coarsened, rows a thread 25" in names
    assert "privatized" not in names
    with pytest.raises(UsageError, match="leave --sweep out"):
        rungs_of("spmspm", "cpu", sweep=True)


RUNGS = {
    ("spmspm", "cpu"): ["sequential", "scipy", "scatter", "panel"],
    ("spmspm", "cuda"): [
        *("naive", "warp_vote", "coarsened", "privatized", "warp_vote_coarsened", "warp_vote_privatized"),
        *("row_per_warp", "tile", "chunks"),
    ],
    ("spmspm", "reference"): ["reference"],
    ("histogram", "cuda"): ["atomic", "warp_match"],
    ("scan", "cuda"): ["single_block", "two_level"],
    ("binning", "cuda"): ["atomic", "warp_match"],
    ("sort", "cuda"): ["exchange", "bitmap_rank"],
}
"""From plain to fast."""


@pytest.mark.parametrize(("operation", "device"), RUNGS)
def test_rungs_are_told_from_plain_to_fast(operation, device):
    rungs = rungs_of(operation, device)
    assert [rung.name for rung in rungs] == RUNGS[operation, device]
    if operation != "spmspm":  # the steps of conversion, of which the engine takes the last rung
        assert rungs[-1].launch is getattr(conversion, operation)
        assert not any(rung.auto for rung in rungs)


SMALL = {"conv2d": (70, (4, 30, 30, 8, 3, 1)), "gemm": (0, (300, 200, 100))}
"""Rows and sizes of random problems that all rungs can run; 1,000 and the widths of the mlp's else."""


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.parametrize("operation", ladders())
def test_every_cuda_rung_climbs_its_ladder(operation, problem):
    random = ladder_for(operation).problem
    given = random(*SMALL.get(operation, (1000, (72, 64, 64, 4))), 0) if random else problem
    result = run_ladder(operation, *given, device="cuda", runs=2, roofs=ROOFS)
    assert result.correct, [(rung.name, rung.error) for rung in result.rungs]
    assert len(result.rungs) >= 2
    for rung in result.rungs:
        assert rung.kernel_seconds > 0
        assert rung.name.startswith(("library", "cublas")) or rung.registers > 0
    if operation in ("spmspm", "conv2d"):
        assert run_ladder(operation, *given, device="cuda", runs=1, roofs=ROOFS, sweep=True).correct


@pytest.mark.parametrize("operation", SMALL)
def test_every_rung_can_run_the_small_problem(operation, monkeypatch):
    monkeypatch.setattr("sparsenn.backends.cuda.conv.cudnn.why_no_library", lambda: None)
    monkeypatch.setattr("sparsenn.backends.cuda.conv.channels_last.why_no_library", lambda: None)
    ladder = ladder_for(operation)
    given = ladder.problem(*SMALL[operation], 0)
    for rung in rungs_of(operation, "cuda"):
        assert rung.why_not(H200, *ladder.asked(*given)) is None
