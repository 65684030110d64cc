"""Activations of the CPU kernels: each that is known is computed by every kernel; all others are refused in time."""

from dataclasses import dataclass

import numpy as np
import pytest

from sparsenn import Session
from sparsenn.backends import backend_for, kernel_named
from sparsenn.backends.cpu.stack import ACTIVATIONS
from sparsenn.errors import UsageError
from sparsenn.formats import from_dense
from sparsenn.layers import Activation, Conv2d, Linear, SparseLinear
from sparsenn.network import Network


@dataclass(frozen=True)
class Doubled(Activation):
    """An activation that no kernel has heard of."""

    name = "doubled"

    def __call__(self, z):
        return z + z


def network(kind, activation):
    """A layer whose sums are its inputs."""
    if kind == "conv2d":
        return Network((Conv2d(np.ones((1, 1, 1, 1), np.float32), None, activation),), image=(1, 3, 21))
    eye = np.eye(63, dtype=np.float32)
    if kind == "mlp":
        return Network((Linear(eye, None, activation),))
    return Network((SparseLinear.from_scipy(from_dense(eye).to_scipy(), None, activation),))


COMPILED = [
    *(("spmspm", name) for name in ("panel", "scatter", "rows")),
    ("mlp", "register_tiled"),
    ("conv2d", "direct"),
]


@pytest.mark.parametrize(("kind", "kernel"), COMPILED)
@pytest.mark.parametrize("activation", list(ACTIVATIONS), ids=lambda kind: kind.__name__)
def test_every_kernel_computes_every_activation(kind, kernel, activation):
    rows = np.linspace(-9, 9, 5 * 63, dtype=np.float32).reshape(5, 63)
    outputs = Session(network(kind, activation()), device="cpu", kernel=kernel)(rows)
    np.testing.assert_allclose(outputs, activation()(rows.astype(np.float64)), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("kind", "kernel"), COMPILED)
def test_every_kernel_refuses_others_before_it_computes(kind, kernel):
    rows = np.ones((1, 63), np.float32)
    with pytest.raises(UsageError, match="do not know the activation"):
        Session(network(kind, Doubled()), device="cpu", kernel=kernel)(rows)
    layer, backend = network(kind, Doubled())[0], backend_for("cpu")
    prepare = {
        "spmspm": lambda: backend.prepare([layer], [np.ones(63, np.int64)]),
        "mlp": lambda: backend.prepare_dense([layer]),
        "conv2d": lambda: kernel_named(kind, kernel, "cpu").launch(layer, rows.reshape(1, 1, 3, 21)),
    }[kind]
    with pytest.raises(UsageError, match="do not know the activation"):
        prepare()
