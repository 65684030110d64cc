"""The registry: one place for names, and an answer for wrong ones."""

import pytest

from sparsenn import backends
from sparsenn.backends.cuda import tensor_tiles
from sparsenn.backends.cuda.conv import tensor_plan
from sparsenn.backends.cuda.runtime.availability import ANY_GPU, LEAST_CAPABILITY
from sparsenn.backends.cuda.runtime.precision import SPLIT_PRODUCTS
from sparsenn.backends.registry import register
from sparsenn.backends.selection import select_kernels
from sparsenn.errors import DeviceError, SparseNNError, UsageError

PREFERRED = {
    ("spmspm", "cpu"): ["panel", "rows", "gathered_rows"],
    ("spmspm", "cuda"): [
        *("resident", "chunks", "few_rows", "few_rows_float16"),
        *("two_of_four_float32", "two_of_four_tf32", "two_of_four_float16"),
        *("chunks_tf32", "chunks_float16"),
    ],
    ("mlp", "cpu"): ["register_tiled"],
    ("mlp", "cuda"): [
        *("tensor_float32", "fused_fma", "tensor_tf32", "tensor_half"),
        *("warpgroup_float32", "warpgroup_tf32", "warpgroup_half", "cublas", "cublas_tf32", "cublas_float16"),
    ],
    ("conv2d", "cpu"): ["conv_direct"],
    ("conv2d", "cuda"): [
        *("conv_tensor_float32", "conv_implicit_float32", "conv_warpgroup_float32"),
        *("conv_register_tiled", "conv_sparse_direct", "conv_depthwise", "conv_unrolled", "conv_cudnn_float32"),
        *("conv_tensor_tf32", "conv_warpgroup_tf32", "conv_cudnn_tf32"),
        *("conv_tensor_half", "conv_warpgroup_half", "conv_cudnn_float16"),
    ],
}
"""What `auto` takes of those that can run a problem, where estimates do not say otherwise, the preferred one first."""


@pytest.mark.parametrize(("problem", "names"), PREFERRED.items())
def test_auto_prefers(problem, names):
    assert [kernel.name for kernel in backends.automatic(*problem)] == names


@pytest.mark.parametrize("operation", ["spmspm", "mlp", "conv2d", "train"])
def test_the_reference_has_one_kernel_of_each_operation(operation):
    (kernel,) = backends.automatic(operation, "reference")
    assert kernel.name == "reference"


def test_unknown_names_list_the_known_ones():
    with pytest.raises(UsageError, match=r"unknown operation 'spmm'.*known: .*spmspm"):
        backends.kernels("spmm")
    with pytest.raises(UsageError, match=r"kernel for spmspm 'gather'.*panel, rows, scatter, scipy, sequential"):
        backends.kernel_named("spmspm", "gather", "cpu")


def test_a_name_is_taken_once():
    with pytest.raises(SparseNNError, match="registered twice"):
        register(backends.kernel_named("spmspm", "panel", "cpu"))


def test_every_cuda_kernel_needs_the_gpu_that_is_asked_for():
    """A device that passes `check_device` can run all kernels, but for those that refuse another architecture."""
    assert f"capability {LEAST_CAPABILITY / 10:.1f})" in ANY_GPU
    others = [entry for entry in backends.kernels(device="cuda") if entry.needs[0] != ANY_GPU]
    assert {entry.needs[0] for entry in others} == {"NVIDIA GPU (compute capability 9.0 only)"}
    assert all(entry.name.startswith(("warpgroup_", "conv_warpgroup_", "two_of_four_")) for entry in others)


def test_float32_on_tensor_cores_is_three_products_in_tf32():
    split = {"tensor_float32", "warpgroup_float32", "conv_tensor_float32", "conv_implicit_float32"}
    split |= {"conv_warpgroup_float32"}
    entries = [entry for operation in ("conv2d", "gemm", "mlp") for entry in backends.kernels(operation, "cuda")]
    found = {entry.name: entry.tf32_products for entry in entries}
    assert found == {name: SPLIT_PRODUCTS if name in split else 0 for name in found}
    assert split <= set(found)
    assert tensor_tiles.FLOAT32.products == tensor_plan.FLOAT32.passes == SPLIT_PRODUCTS


@pytest.mark.parametrize(
    ("device", "error", "message"),
    [
        *((device, DeviceError, "use device cpu") for device in ("cuda:99", "cuda:1234")),
        *((device, UsageError, "unknown device") for device in ("", "gpu", "cuda:", "cuda:x", "CPU")),
    ],
)
def test_a_device_that_is_not_there_or_does_not_exist_is_refused(device, error, message):
    with pytest.raises(error, match=message):
        backends.backend_for(device)


@pytest.mark.parametrize("has_cupy", [False, True])
def test_auto_is_the_cpu_where_cupy_is_missing_or_there_is_no_gpu(monkeypatch, has_cupy):
    def refuse(index):
        raise DeviceError("no GPU")

    monkeypatch.setattr("sparsenn.backends.selection.find_spec", lambda name: object() if has_cupy else None)
    monkeypatch.setattr("sparsenn.backends.selection.CUDABackend", refuse)
    assert backends.backend_for("auto").device == "cpu"


def test_a_kernel_that_only_the_cpu_has_takes_auto_there():
    backend, kernels = select_kernels("auto", "panel")
    assert backend.device == "cpu"
    assert [entry.name for entry in kernels] == ["panel"]
