"""Convolutions by cuDNN: the kernel beside the library in emulation; on a GPU see `test_on_tensor_cores`."""

import numpy as np
import pytest
from emulation import emulated

from sparsenn.backends.cuda.conv import Geometry, cudnn
from sparsenn.backends.cuda.conv.cudnn import FINISH, why_no_library
from sparsenn.backends.cuda.runtime.activation import IDENTITY, RELU
from sparsenn.backends.machine import H200

NAMES = {np.float32: "float", np.float16: "half_bits"}


@pytest.mark.parametrize(("activation", "clip"), [(RELU, np.inf), (RELU, 0.5), (IDENTITY, np.inf)])
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("number", NAMES)
@pytest.mark.parametrize("shape", [(3, 5, 77), (2, 3, 12), (2, 16, 9)], ids=str)
def test_bias_another_value_and_activation_in_place(shape, number, adds, activation, clip, rng):
    sums, others = rng.normal(size=(2, *shape)).astype(number)
    bias = rng.normal(size=shape[1]).astype(np.float32)
    sums[1, 1, 2] = np.nan
    totals = sums.astype(np.float32) + bias[:, None] + (others if adds else 0)
    expected = finished(totals, activation, clip).astype(number)
    for last in (0, 1) if shape[1] % 4 == 0 else (0,):
        found, added = (np.ascontiguousarray(each.swapaxes(1, 2)) if last else each.copy() for each in (sums, others))
        sizes = map(np.uint32, (sums.size, shape[2], shape[1]))
        kernel = emulated(FINISH, {"THREADS": 64, "NUMBER": NAMES[number], "LAST": last, "ADDS": int(adds)})
        kernel.launch(3, 64, found, added, bias, *sizes, np.int32(activation), np.float32(clip))
        assert np.array_equal(found.swapaxes(1, 2) if last else found, expected, equal_nan=True)


def finished(sums, activation, clip):
    return np.clip(sums, 0, clip) if activation == RELU else sums


def test_without_the_frontend_the_kernels_say_so(monkeypatch):
    why_no_library.cache_clear()
    monkeypatch.setattr(cudnn, "find_spec", lambda name: None)
    assert why_no_library() == "the package nvidia-cudnn-frontend is not installed"
    assert "nvidia-cudnn-frontend" in cudnn._fits(H200, Geometry(8, 9, 9, 8, (3, 3)))
    why_no_library.cache_clear()


def test_a_library_that_does_not_load_is_said_to_be_missing(monkeypatch):
    def fail(name):
        raise OSError("libcudnn.so.9: cannot open")

    why_no_library.cache_clear()
    monkeypatch.setattr(cudnn, "find_spec", lambda name: object())
    monkeypatch.setattr(cudnn, "import_module", fail)
    assert why_no_library() == "cuDNN cannot be loaded (libcudnn.so.9: cannot open)"
    why_no_library.cache_clear()
