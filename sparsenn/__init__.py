"""sparsenn: exact and fast inference for sparse deep neural networks.

::

    import sparsenn

    dataset = sparsenn.load("radixnet-1024x120")
    session = sparsenn.Session(dataset.network)
    result = session.run(dataset.inputs)
    print(result.plan, result.categories + 1, result.edges_per_second)

The public names are listed below; each is imported on first use, which keeps importing the package quick.
`sparsenn.torch.wrap` turns a network into a PyTorch module, `sparsenn.torch.sparsify` speeds up the pruned layers of
one; `sparsenn.distributed.infer` runs a network on a Dask cluster.
All errors are in `sparsenn.errors`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sparsenn.plugins import add_plugin, draw_views_with

if TYPE_CHECKING:
    import sparsenn.distributed as distributed  # noqa: F401
    import sparsenn.torch as torch  # noqa: F401
    from sparsenn.backends import Kernel, kernels
    from sparsenn.backends.trace import trace
    from sparsenn.datasets import load, radixnet
    from sparsenn.distributed.devices import Sessions, infer
    from sparsenn.distributed.streaming import stream
    from sparsenn.engine import BoundCall, LayerStatistics, Plan, Result, Session, plan
    from sparsenn.errors import SparseNNError
    from sparsenn.formats import COO, CSC, CSR, InputLayout
    from sparsenn.interop.sklearn import SparseClassifier, SparseRegressor
    from sparsenn.io import (
        Dataset,
        from_keras,
        from_sklearn,
        from_torch,
        from_weights,
        read_model,
        write_dataset,
        write_model,
    )
    from sparsenn.io.importers.onnx import from_onnx, to_onnx
    from sparsenn.layers import (
        Add,
        AvgPool2d,
        Concatenate,
        Conv2d,
        Flatten,
        ForeignLayer,
        LayerNorm,
        Linear,
        LogSoftmax,
        MaxPool2d,
        Multiply,
        PerPosition,
        Slice,
        Softmax,
        SparseLinear,
    )
    from sparsenn.layers.activation import (
        CELU,
        ELU,
        GELU,
        SELU,
        GELUTanh,
        HardSigmoid,
        HardSwish,
        Identity,
        LeakyReLU,
        Mish,
        ReLU,
        Sigmoid,
        SiLU,
        Softplus,
        Softsign,
        Tanh,
    )
    from sparsenn.model import Model
    from sparsenn.network import Network, Node
    from sparsenn.predictions import PredictedTable, predict_table
    from sparsenn.structure import Structure, find_structure
    from sparsenn.training import TrainingData, evaluate, read_data, train

__version__ = "0.2.0"

__all__ = [
    "CELU",
    "COO",
    "CSC",
    "CSR",
    "ELU",
    "GELU",
    "SELU",
    "Add",
    "AvgPool2d",
    "BoundCall",
    "Concatenate",
    "Conv2d",
    "Dataset",
    "Flatten",
    "ForeignLayer",
    "GELUTanh",
    "HardSigmoid",
    "HardSwish",
    "Identity",
    "InputLayout",
    "Kernel",
    "LayerNorm",
    "LayerStatistics",
    "LeakyReLU",
    "Linear",
    "LogSoftmax",
    "MaxPool2d",
    "Mish",
    "Model",
    "Multiply",
    "Network",
    "Node",
    "PerPosition",
    "Plan",
    "PredictedTable",
    "ReLU",
    "Result",
    "Session",
    "Sessions",
    "SiLU",
    "Sigmoid",
    "Slice",
    "Softmax",
    "Softplus",
    "Softsign",
    "SparseClassifier",
    "SparseLinear",
    "SparseNNError",
    "SparseRegressor",
    "Structure",
    "Tanh",
    "TrainingData",
    "evaluate",
    "find_structure",
    "from_keras",
    "from_onnx",
    "from_sklearn",
    "from_torch",
    "from_weights",
    "infer",
    "kernels",
    "load",
    "plan",
    "predict_table",
    "radixnet",
    "read_data",
    "read_model",
    "stream",
    "to_onnx",
    "trace",
    "train",
    "write_dataset",
    "write_model",
]

_HOMES = {
    "sparsenn.backends": ("Kernel", "kernels"),
    "sparsenn.backends.trace": ("trace",),
    "sparsenn.datasets": ("load", "radixnet"),
    "sparsenn.distributed.devices": ("Sessions", "infer"),
    "sparsenn.distributed.streaming": ("stream",),
    "sparsenn.engine": (
        "BoundCall",
        "LayerStatistics",
        "Plan",
        "Result",
        "Session",
        "plan",
    ),
    "sparsenn.errors": ("SparseNNError",),
    "sparsenn.interop.sklearn": ("SparseClassifier", "SparseRegressor"),
    "sparsenn.formats": ("COO", "CSC", "CSR", "InputLayout"),
    "sparsenn.io": (
        *("Dataset", "from_keras", "from_sklearn", "from_torch", "from_weights"),
        *("read_model", "write_dataset", "write_model"),
    ),
    "sparsenn.io.importers.onnx": ("from_onnx", "to_onnx"),
    "sparsenn.layers": (
        *("Add", "AvgPool2d", "Concatenate", "Conv2d", "Flatten", "ForeignLayer", "LayerNorm"),
        *("Linear", "LogSoftmax", "MaxPool2d", "Multiply", "PerPosition", "Slice", "Softmax"),
        "SparseLinear",
    ),
    "sparsenn.layers.activation": (
        *("CELU", "ELU", "GELU", "GELUTanh", "HardSigmoid", "HardSwish", "Identity", "LeakyReLU", "Mish", "ReLU"),
        *("SELU", "SiLU", "Sigmoid", "Softplus", "Softsign", "Tanh"),
    ),
    "sparsenn.model": ("Model",),
    "sparsenn.network": ("Network", "Node"),
    "sparsenn.predictions": ("PredictedTable", "predict_table"),
    "sparsenn.structure": ("Structure", "find_structure"),
    "sparsenn.training": ("TrainingData", "evaluate", "read_data", "train"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

_PACKAGES = "distributed", "engine", "errors", "torch"
"""Packages and modules whose names are public, too; each is imported on first use."""

add_plugin("sparsenn.studies")
draw_views_with("sparsenn.report.views")


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(f"sparsenn.{name}")
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_PACKAGES, "__version__"})
