"""The plot by layer: each file type, its content, and no half-written file."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sparsenn.engine import Result
from sparsenn.errors import ResourceError, UsageError
from sparsenn.report import PLOT_SUFFIXES, draw_layers
from sparsenn.report.plots import layers_figure

MAGIC = {".png": b"\x89PNG\r\n", ".svg": b"<?xml", ".pdf": b"%PDF-"}


def test_every_suffix_is_known_here() -> None:
    assert set(PLOT_SUFFIXES) == set(MAGIC)


@pytest.mark.parametrize("suffix", [*PLOT_SUFFIXES, ".PNG"])
def test_file_type_follows_the_suffix(result: Result, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"layers{suffix}"
    draw_layers(result.statistics, path, "a title")
    assert path.read_bytes().startswith(MAGIC[suffix.lower()])
    assert list(tmp_path.iterdir()) == [path]


def test_curves_are_the_statistics(result: Result) -> None:
    rows, density, time = layers_figure(result.statistics, "a title").axes
    active, distinct = rows.get_lines()
    assert list(active.get_ydata()) == [layer.active_rows for layer in result.statistics]
    looked = [layer for layer in result.statistics if layer.distinct_rows is not None]
    assert list(distinct.get_xdata()) == [layer.layer for layer in looked]
    assert list(distinct.get_ydata()) == [layer.distinct_rows for layer in looked]
    assert list(density.get_lines()[0].get_ydata()) == [layer.density for layer in result.statistics]
    bars = {round(bar.get_x() + bar.get_width() / 2): bar.get_height() for bar in time.patches}
    assert bars == pytest.approx({layer.layer: 1e3 * layer.seconds for layer in result.statistics})


def test_legend_names_each_kernel_once(result: Result) -> None:
    mixed = [replace(layer, kernel=("one", "two")[layer.layer % 2]) for layer in result.statistics]
    legend = layers_figure(mixed, "").axes[2].get_legend()
    assert sorted(text.get_text() for text in legend.get_texts()) == ["one", "two"]


def test_one_layer_without_distinct_rows_or_activity(result: Result, tmp_path: Path) -> None:
    dead = replace(result.statistics[0], active_rows=0, distinct_rows=None, density=0.0, seconds=0.0)
    draw_layers([dead], tmp_path / "one.svg")
    assert "distinct" not in (tmp_path / "one.svg").read_text()


@pytest.mark.parametrize("name", ["layers.bmp", "layers", "layers.png.gz"])
def test_other_suffixes_are_refused(result: Result, tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"use \.png, \.svg, \.pdf"):
        draw_layers(result.statistics, tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_missing_folder_is_told(result: Result, tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match="does not exist"):
        draw_layers(result.statistics, tmp_path / "none" / "layers.png")


def test_failure_while_writing_leaves_the_old_file(
    result: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib.figure import Figure

    def fill_the_disk(figure: Figure, path: Path, **options: object) -> None:
        Path(path).write_bytes(b"half a pict")
        raise OSError(28, "No space left on device")

    path = tmp_path / "layers.png"
    path.write_bytes(b"old")
    monkeypatch.setattr(Figure, "savefig", fill_the_disk)
    with pytest.raises(ResourceError, match=r"layers\.png.*the disk is full"):
        draw_layers(result.statistics, path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_matplotlib_is_imported_only_to_draw() -> None:
    code = "import sys, sparsenn.report; print('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=240)
    assert done.stdout == "False\n"
