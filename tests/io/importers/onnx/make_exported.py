"""Make the files in `exported`: small networks of many structures, as torch's two exporters and skl2onnx write them.

    python tests/io/importers/onnx/make_exported.py

Each NAME.onnx has beside it NAME.npz: rows, and what the library that it is from gives for them. Needs torch,
onnxscript, scikit-learn and skl2onnx.
"""

from __future__ import annotations

import io
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from torch import nn
from torch.nn.utils import prune

FOLDER = Path(__file__).parent / "exported"


class Plain(nn.Module):
    """Layers called as a function would, as most tutorials have it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 3, 3), nn.Conv2d(3, 4, 3)
        self.drop, self.fc1, self.fc2 = nn.Dropout(), nn.Linear(16, 8), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.relu(nn.functional.max_pool2d(self.conv1(x), 2))
        x = nn.functional.relu(self.drop(self.conv2(x)))
        x = x.view(x.size(0), -1)
        return nn.functional.softmax(self.fc2(torch.relu(self.fc1(x))), dim=1)


class Scaled(nn.Module):
    """Rows that are normalised within the network, and weights that a mask is laid over."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.rand(6))
        self.register_buffer("mask", (torch.rand(9, 6) < 0.3).float())
        self.weight, self.last = nn.Parameter(torch.randn(9, 6)), nn.Linear(9, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = (x / 255.0 - self.mean) @ (self.weight * self.mask).T
        return self.last(torch.clamp(hidden, 0.0, 32.0)) * 2.0 - 1.0


class Means(nn.Module):
    """Means of pixels by hand, and axes in another order."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.last, self.wide = nn.Conv2d(2, 4, 3), nn.Linear(4, 3), nn.Linear(4 * 4 * 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.conv(x)).mean(dim=(2, 3)))


class ChannelsLast(Means):
    """An image whose channels come last before it becomes a row."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.wide(torch.relu(self.conv(x)).permute(0, 2, 3, 1).reshape(-1, 64))


def pruned(amount: float = 0.9) -> nn.Module:
    made = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 30), nn.ReLU(), nn.Linear(30, 4))
    for layer in made:
        if isinstance(layer, nn.Linear):
            prune.l1_unstructured(layer, "weight", amount=amount)
    return made


def trained(network: nn.Module, *shape: int) -> nn.Module:
    """Give layers that normalise numbers to normalise by."""
    network.train()
    for _ in range(3):
        network(torch.randn(16, *shape) * 2 + 0.5)
    return network


def networks() -> Iterator[tuple[str, nn.Module, tuple[int, ...]]]:
    """Yield names, networks and the shapes of their rows."""
    activations = [nn.ReLU(), nn.Sigmoid(), nn.Tanh(), nn.ReLU6(), nn.Hardtanh(-0.5, 0.75), nn.Hardsigmoid()]
    for activation in activations:
        name = type(activation).__name__.lower()
        yield f"mlp-{name}", nn.Sequential(nn.Linear(6, 8), activation, nn.Linear(8, 3)), (6,)
    yield "mlp-no-bias", nn.Sequential(nn.Linear(6, 8, bias=False), nn.ReLU(), nn.Linear(8, 3, bias=False)), (6,)
    yield "mlp-deep", nn.Sequential(*[layer for _ in range(6) for layer in (nn.Linear(6, 6), nn.ReLU())]), (6,)
    yield "mlp-softmax", nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3), nn.Softmax(dim=-1)), (6,)
    dropout = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 3))
    yield "mlp-batchnorm", trained(dropout, 6), (6,)
    first = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 8), nn.ReLU(), nn.BatchNorm1d(8), nn.Linear(8, 3))
    yield "mlp-batchnorm-first", trained(first, 6), (6,)
    yield "mlp-flatten", nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 3)), (3, 4)
    yield "mlp-pruned", pruned(), (20,)
    yield "mlp-scaled-masked", Scaled(), (6,)
    named = OrderedDict(first=nn.Linear(6, 8), act=nn.Tanh(), last=nn.Linear(8, 1))
    yield "mlp-one-output", nn.Sequential(named), (6,)
    yield "plain-conv", Plain(), (1, 10, 10)
    yield "conv-mean", Means(), (2, 6, 6)
    yield "conv-channels-last", ChannelsLast(), (2, 6, 6)
    norm = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(36, 3),
    )  # fmt: skip
    yield "conv-batchnorm", trained(norm, 2, 6, 6), (2, 6, 6)
    norm = nn.Sequential(nn.BatchNorm2d(2), nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    yield "conv-batchnorm-first", trained(norm, 2, 6, 6), (2, 6, 6)
    for name, layer in (
        ("groups", nn.Conv2d(4, 6, 3, groups=2)),
        ("depthwise", nn.Conv2d(4, 4, 3, groups=4, padding=1)),
        ("dilation", nn.Conv2d(4, 3, 3, dilation=2, padding=2)),
        ("stride", nn.Conv2d(4, 3, (3, 2), stride=(2, 1), padding=(1, 0))),
        ("same", nn.Conv2d(4, 3, (4, 2), padding="same")),
    ):
        yield f"conv-{name}", nn.Sequential(layer, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()), (4, 7, 6)
    for name, layer in (
        ("max-pool", nn.MaxPool2d(3, 2, padding=1)),
        ("avg-pool", nn.AvgPool2d(3, 2, padding=1)),
        ("avg-pool-of-image", nn.AvgPool2d(3, 2, padding=1, count_include_pad=False)),
        ("global-max", nn.AdaptiveMaxPool2d(1)),
    ):
        size = 2 if name == "global-max" else 18
        yield f"conv-{name}", nn.Sequential(
            nn.Conv2d(1, 2, 3, padding=1), nn.Sigmoid(), layer, nn.Flatten(), nn.Linear(size, 3)
        ), (1, 6, 6)  # fmt: skip
    rows = nn.Sequential(nn.Conv1d(2, 4, 3, padding=1), nn.ReLU(), nn.MaxPool1d(2), nn.Flatten(), nn.Linear(20, 3))
    yield "conv-1d", rows, (2, 10)


def write(name: str, proto: Any, rows: Any, outputs: Any) -> None:
    """Write a model and what it gives."""
    for node in proto.graph.node:  # where the exporter met a layer in the source, at length
        node.ClearField("metadata_props")
        node.ClearField("doc_string")
    for value in (*proto.graph.value_info, *proto.graph.input, *proto.graph.output, *proto.graph.initializer):
        value.ClearField("metadata_props")
    del proto.graph.value_info[:]
    (FOLDER / f"{name}.onnx").write_bytes(proto.SerializeToString())
    np.savez_compressed(FOLDER / f"{name}.npz", rows=rows, outputs=outputs)


def from_torch() -> None:
    """Write networks of torch by its old exporter and its new one."""
    for name, network, shape in networks():
        network.eval()
        rows = torch.randn(4, *shape)
        with torch.no_grad():
            outputs = network(rows).numpy()
        stream = io.BytesIO()
        torch.onnx.export(network, (rows,), stream, dynamo=False, input_names=["x"], dynamic_axes={"x": {0: "rows"}})
        write(f"{name}.script", onnx.load_from_string(stream.getvalue()), rows.numpy(), outputs)
        dimensions = ({0: torch.export.Dim("rows")},)
        program = torch.onnx.export(network, (rows,), dynamo=True, verbose=False, dynamic_shapes=dimensions)
        write(f"{name}.dynamo", program.model_proto, rows.numpy(), outputs)


def from_sklearn() -> None:
    """Write networks of scikit-learn, with scaling before them."""
    from skl2onnx import to_onnx
    from sklearn.neural_network import MLPClassifier, MLPRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import MinMaxScaler, StandardScaler

    rng = np.random.default_rng(1)
    rows = rng.random((60, 4)).astype(np.float32)
    species = np.array(["setosa", "versicolor", "virginica"])[rng.integers(0, 3, 60)]
    kinds: dict[str, tuple[Any, Any, Callable[..., Any]]] = {
        "two": (MLPClassifier((6,), max_iter=30), rng.integers(0, 2, 60), StandardScaler),
        "three": (MLPClassifier((6, 5), "tanh", max_iter=30), rng.integers(0, 3, 60), StandardScaler),
        "names": (MLPClassifier((6,), "logistic", max_iter=30), species, MinMaxScaler),
        "regression": (MLPRegressor(hidden_layer_sizes=(6,), max_iter=30), rng.random(60), StandardScaler),
    }
    for name, (estimator, targets, scaler) in kinds.items():
        made = make_pipeline(scaler(), estimator).fit(rows, targets)
        classifier = hasattr(made, "predict_proba")
        outputs = made.predict_proba(rows[:5]) if classifier else made.predict(rows[:5]).reshape(5, -1)
        options = {id(made): {"zipmap": name != "three"}} if classifier else None
        write(f"sklearn-{name}", to_onnx(made, rows, options=options, target_opset=17), rows[:5], outputs)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    FOLDER.mkdir(exist_ok=True)
    torch.manual_seed(1)
    from_torch()
    from_sklearn()
