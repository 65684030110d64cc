"""Pictures of recorded ladders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from results_file import write_results
from rung_plots import draw_rungs, main

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
    row("library", "4 × 4 × 4", milliseconds=2300.0),
]


def test_every_problem_and_kernel_is_in_the_picture(tmp_path: Path) -> None:
    draw_rungs("gemm", ROWS, tmp_path / "rungs.svg")
    text = (tmp_path / "rungs.svg").read_text()
    for part in (
        "8 × 8",
        "4 × 4 × 4",
        "vectorized: 1.5",
        "tensor_half (float16): 0.125",
        "naive: 150",
        "library: 2,300",
        "cuBLAS, float32",
    ):
        assert part in text
    assert "cuBLAS, float16" not in text  # it was not measured


def test_result_files_are_drawn_beside_them_with_the_same_bytes_each_time(tmp_path: Path) -> None:
    rows = [row("naive", "", shape="1 × 8 × 8", images=images, milliseconds=images) for images in (10, 2000)]
    rows += [row("naive", "", shape="4 × 8 × 8", images=10)]
    path = tmp_path / "made.json"
    write_results(path, table="conv2d", title="t", columns=[("kernel", "k")], rows=rows, configuration={})
    assert main([str(path)]) == 0
    drawn = (tmp_path / "conv2d-ladder.svg").read_text()
    assert [part in drawn for part in ("2,000 images, 1 × 8 × 8", "10 images, 4 × 8 × 8", "10 images, 1 ×")] == [
        *(True, True, False)
    ]
    assert "PyTorch, float32" in drawn
    assert main([str(path)]) == 0
    assert (tmp_path / "conv2d-ladder.svg").read_text() == drawn


def test_other_tables_have_no_such_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "made.json"
    write_results(path, table="mlp", title="t", columns=[("kernel", "k")], rows=ROWS, configuration={})
    assert main([str(path)]) == 2
    assert "no ladder is drawn of table mlp; there are conv2d, gemm" in capsys.readouterr().err


def test_a_picture_is_of_a_known_type(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot draw"):
        draw_rungs("gemm", ROWS, tmp_path / "rungs.gif")
