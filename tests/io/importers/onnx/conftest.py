"""Without ONNX Runtime's layers, unless a test asks for them: what this package's own layers read, or refuse."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sparsenn.io.importers.onnx import files, mixed


@pytest.fixture(autouse=True)
def _own_layers_alone(request: pytest.FixtureRequest) -> Iterator[None]:
    def import_graph(model: Any, tensors: Any, sparse_below: float, foreign: bool) -> Any:
        return mixed.import_graph(model, tensors, sparse_below, False)

    with pytest.MonkeyPatch.context() as patch:
        if "foreign_layers" not in request.fixturenames:
            patch.setattr(files, "import_graph", import_graph)
        yield


@pytest.fixture
def foreign_layers() -> None:
    """Let ONNX Runtime compute what no layer does."""
