"""Pictures of recorded ladders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rung_plots import draw_rungs

from sparsenn.errors import UsageError


def row(kernel: str, sizes: str, **changes: Any) -> dict[str, Any]:
    plain = {"precision": "float32", "features": "float32", "milliseconds": 1.5, "peer_milliseconds": 1.0}
    return {"kernel": kernel, "sizes": sizes, **plain, **changes}


ROWS = [
    row("naive", "8 × 8", milliseconds=150.0),
    row("vectorized", "8 × 8"),
    row("tensor_half", "8 × 8", precision="float16", milliseconds=0.25, peer_milliseconds=None),
    row("tensor_half", "8 × 8", precision="float16", features="float16", milliseconds=0.125, peer_milliseconds=None),
    row("naive", "4 × 4 × 4"),
]


def test_every_problem_and_kernel_is_in_the_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import matplotlib as mpl

    monkeypatch.setitem(mpl.rcParams, "svg.fonttype", "none")
    draw_rungs(ROWS, "sizes", "cuBLAS", tmp_path / "rungs.svg")
    text = (tmp_path / "rungs.svg").read_text()
    for part in ("8 × 8", "4 × 4 × 4", "vectorized", "tensor_half (float16)", ">150<", ">0.125<", "cuBLAS, float32"):
        assert part in text
    assert "cuBLAS, float16" not in text  # it was not measured


def test_a_picture_is_of_a_known_type(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot draw"):
        draw_rungs(ROWS, "sizes", "cuBLAS", tmp_path / "rungs.gif")
