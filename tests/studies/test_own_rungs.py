"""Rungs that are not the package's own, and their emulation on a host without a GPU."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from kernel_registry import add

from sparsenn.errors import SparseNNError, UsageError
from sparsenn.studies import gemm, ladder
from sparsenn.studies.gemm.kernel import ProductKernel
from sparsenn.studies.ladder import add_rung, load_rungs, rungs_of
from sparsenn.studies.measure import Roofs
from sparsenn.studies.run import LadderResult, run_ladder

ROOFS = Roofs(1e10, 1e11, "L3", 1 << 25, {"float32": 1e9})

KERNEL = """
extern "C" __global__ void gemm(int rows, int columns, int depth, const float* a, const float* b, float* c) {
    const int output = blockIdx.x * blockDim.x + threadIdx.x;
    if (output >= rows * columns) return;
    const int row = output / columns, column = output % columns;
    float sum = 0;
    for (int term = 0; term < depth; ++term) sum += a[row * depth + term] * b[term * columns + column];
    c[output] = sum;
}
"""


@pytest.fixture(autouse=True)
def _restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rungs that a test adds last as long as the test."""
    add(monkeypatch)
    monkeypatch.setattr(ladder, "_LADDERS", dict(ladder._LADDERS))


def product(launch: object, name: str = "own", device: str = "cpu") -> ProductKernel:
    return ProductKernel(name=name, device=device, summary="a test", launch=launch)  # type: ignore[arg-type]


def climb(device: str = "cpu", sizes: tuple[int, ...] = (20, 30, 10)) -> LadderResult:
    roofs = None if device == "emulated" else ROOFS
    problem = ladder.ladder_for("gemm").problem
    assert problem is not None
    return run_ladder("gemm", *problem(0, sizes, 0), device=device, runs=1, roofs=roofs)


def test_a_rung_is_the_last_of_its_ladder_and_is_checked() -> None:
    before = [rung.name for rung in rungs_of("gemm", "cpu")]
    add_rung(product(np.matmul))
    add_rung(product(lambda a, b: a @ b + 1, "wrong"))
    assert [rung.name for rung in rungs_of("gemm", "cpu")] == [*before, "own", "wrong"]
    assert [rung.correct for rung in climb().rungs][-2:] == [True, False]


def test_a_name_that_is_taken_and_an_operation_without_a_ladder() -> None:
    with pytest.raises(SparseNNError, match="'blas' of gemm is registered twice"):
        add_rung(product(np.matmul, "blas"))
    with pytest.raises(UsageError, match="unknown ladder 'gem'"):
        add_rung(ProductKernel(name="own", operation="gem", device="cpu", summary="a test", launch=np.matmul))


def test_a_rung_that_fails_is_named_with_the_line() -> None:
    def fail(a: object, b: object) -> None:
        raise ZeroDivisionError("one by none")

    add_rung(product(fail))
    with pytest.raises(UsageError, match=r"rung own fails at .*test_own_rungs.py:\d+: ZeroDivisionError: one by none"):
        climb()


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("x = 1\nx / 0", r"own.py:2: ZeroDivisionError"),
        ("x = 1\nx +", r"own.py:2: invalid syntax"),
        ("from sparsenn.errors import InputError\nraise InputError('no')", "own.py: no"),
    ],
)
def test_a_file_that_fails(code: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(code)
    with pytest.raises(UsageError, match=message):
        load_rungs(tmp_path / "own.py")


def test_a_file_imports_from_its_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "beside_the_rungs.py").write_text("summary = 'from beside'\n")
    (tmp_path / "own.py").write_text(
        "import beside_the_rungs, numpy\nfrom sparsenn.studies import add_rung\n"
        "from sparsenn.studies.gemm.kernel import ProductKernel\n"
        "add_rung(ProductKernel(name='own', device='cpu', summary=beside_the_rungs.summary, launch=numpy.matmul))\n"
    )
    monkeypatch.chdir(tmp_path.parent)
    load_rungs(Path(tmp_path.name) / "own.py")
    assert rungs_of("gemm", "cpu")[-1].summary == "from beside"


@pytest.mark.skipif(shutil.which("g++") is None, reason="emulating a kernel takes g++")
class TestEmulated:
    def own(self, folder: Path, text: str) -> None:
        (folder / "own.cu").write_text(text)
        gpu, emulated = gemm.own_products("own", "a test", folder / "own.cu", threads=64)
        assert (gpu.device, emulated.device) == ("cuda", "emulated")
        add_rung(emulated)

    def test_answers_are_checked_and_nothing_is_timed(self, tmp_path: Path) -> None:
        self.own(tmp_path, KERNEL)
        result = climb("emulated", (33, 20, 70))
        assert [rung.name for rung in result.rungs] == ["naive", "coalesced", "block_tiled", "shared_tiled", "own"]
        assert result.correct
        assert all(rung.seconds is None and rung.error < 1e-6 for rung in result.rungs)
        assert result.floor_seconds == 0

    @pytest.mark.parametrize(
        ("old", "new", "message"),
        [
            ("sum;", "sum + 1;", None),
            ("a[row * depth + term]", "a[row * depth + term + 4096]", "crashed .SIG(SEGV|BUS).*outside of its arrays"),
            ("float sum = 0;", "float sum = 0; if (threadIdx.x) __syncwarp();", "warp|miss|barrier"),
            ("float sum", "float some", r"own.cu:\d+:\d+: error: .sum."),
            ("__global__", "", "no kernel"),
            ("void gemm", "void product", "no kernel called gemm"),  # a GPU would not find it either
        ],
        ids=["wrong", "outside", "divergent", "does not compile", "no kernel", "another name"],
    )
    def test_faults(self, old: str, new: str, message: str | None, tmp_path: Path) -> None:
        assert old in KERNEL
        self.own(tmp_path, KERNEL.replace(old, new))
        if message is None:
            assert [rung.correct for rung in climb("emulated").rungs] == [True] * 4 + [False]
            return
        with pytest.raises(UsageError, match=message):
            climb("emulated")
