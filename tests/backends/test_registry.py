"""The registry: one place for names, and an answer for wrong ones."""

from pathlib import Path

import pytest

from sparsenn import backends
from sparsenn.backends import cuda
from sparsenn.backends.base import register
from sparsenn.backends.cuda.availability import ANY_GPU, LEAST_CAPABILITY
from sparsenn.backends.cuda.conv import tensor_image
from sparsenn.backends.cuda.dense.image import SPLIT_PRODUCTS
from sparsenn.backends.cuda.gemm import tensor_tiles
from sparsenn.engine.plan import choices
from sparsenn.errors import DeviceError, SparseNNError, UsageError


def test_the_cpu_variants_come_from_plain_to_fast():
    names = [entry.name for entry in backends.variants("spmspm", "cpu")]
    assert names == ["sequential", "scipy", "scatter", "panel"]


def test_every_variant_has_one_line_of_summary():
    for entry in backends.variants():
        assert entry.summary.strip() == entry.summary
        assert 10 < len(entry.summary) < 100
        assert "\n" not in entry.summary


def test_unknown_names_list_the_known_ones():
    with pytest.raises(UsageError, match=r"unknown operation 'spmm'.*known: .*spmspm"):
        backends.variants("spmm")
    with pytest.raises(UsageError, match=r"unknown cpu kernel for spmspm 'gather'.*panel, scatter, scipy, sequential"):
        backends.variant("spmspm", "gather", "cpu")


def test_a_name_is_taken_once():
    with pytest.raises(SparseNNError, match="registered twice"):
        register(backends.variant("spmspm", "panel", "cpu"))


def test_the_cuda_variants_come_from_plain_to_fast():
    names = [entry.name for entry in backends.variants("spmspm", "cuda")]
    assert names[:4] == ["naive", "warp_vote", "coarsened", "privatized"]
    assert names[4:6] == ["warp_vote_coarsened", "warp_vote_privatized"]
    assert {"row_per_warp", "tile"} <= set(names)
    for operation in ("histogram", "scan", "binning", "sort"):
        assert len(backends.variants(operation, "cuda")) == 2
    assert all(entry.needs for entry in backends.variants(device="cuda"))


def test_every_cuda_variant_needs_the_gpu_that_is_asked_for():
    """A device that passes `check_device` can run all variants, but for those that refuse another architecture."""
    assert f"capability {LEAST_CAPABILITY / 10:.1f})" in ANY_GPU
    others = [entry for entry in backends.variants(device="cuda") if entry.needs[0] != ANY_GPU]
    assert {entry.needs[0] for entry in others} == {"NVIDIA GPU (compute capability 9.0 only)"}
    assert all(entry.name.startswith("warpgroup_") for entry in others)


def test_float32_on_tensor_cores_is_three_products_in_tf32():
    kernels = Path(cuda.__file__).parent / "kernels"
    for operation in ("conv2d", "gemm", "mlp"):
        split = {path.stem[3:] for path in (kernels / operation).glob("[0-9][0-9]_*_float32.cu")}
        found = {entry.name: entry.tf32_products for entry in backends.variants(operation, "cuda")}
        assert split
        assert found == {name: SPLIT_PRODUCTS if name in split else 0 for name in found}
        assert split <= set(found)
    assert tensor_tiles.FLOAT32.products == tensor_image.FLOAT32.passes == SPLIT_PRODUCTS


@pytest.mark.parametrize("device", ["cuda:99", "cuda:1234"])
def test_a_device_that_is_not_there_is_refused(device):
    with pytest.raises(DeviceError, match="use --device cpu"):
        backends.backend_for(device)


@pytest.mark.parametrize("device", ["", "gpu", "cuda:", "cuda:x", "CPU"])
def test_a_device_that_does_not_exist_is_refused(device):
    with pytest.raises(UsageError, match="unknown device"):
        backends.backend_for(device)


def test_auto_is_the_cpu_where_cupy_is_missing(monkeypatch):
    monkeypatch.setattr("sparsenn.backends.selection.find_spec", lambda name: None)
    assert backends.backend_for("auto").device == "cpu"


def test_auto_is_the_cpu_where_there_is_no_gpu(monkeypatch):
    def refuse(index):
        raise DeviceError("no GPU")

    monkeypatch.setattr("sparsenn.backends.selection.find_spec", lambda name: object())
    monkeypatch.setattr("sparsenn.backends.selection.CUDABackend", refuse)
    assert backends.backend_for("auto").device == "cpu"


def test_a_kernel_that_only_the_cpu_has_takes_auto_there():
    backend, kernels = choices("auto", "panel")
    assert backend.device == "cpu"
    assert [entry.name for entry in kernels] == ["panel"]
