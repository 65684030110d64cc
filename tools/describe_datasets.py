#!/usr/bin/env python3
"""Write what datasets/README.md says of each model in that folder, from the model's file itself.

What is said of a file NAME stands between two comment lines, and everything between them is replaced:

    <!-- model:NAME -->
    <!-- /model -->

Usage: tools/describe_datasets.py [--check] [--root FOLDER]. --check writes nothing and exits with 1 where the README is
not what the files say. A model that is not there is told on stderr, and what is said of it stays. Errors exit with 2.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from sparsenn.errors import SparseNNError  # noqa: E402
from sparsenn.io import read_model  # noqa: E402
from sparsenn.model import Model  # noqa: E402
from sparsenn.report.architecture import layer_title, shape_text  # noqa: E402
from sparsenn.runtime.storage import replacing  # noqa: E402

START = re.compile(r"<!-- model:([\w.-]+) -->")
END = "<!-- /model -->"


class MarkerError(Exception):
    """The README's markers do not come in pairs."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(description="Write datasets/README.md from the models in that folder.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 where the README is stale")
    parser.add_argument("--root", type=Path, default=ROOT, help="repository whose datasets are meant")
    options = parser.parse_args(arguments)
    readme = options.root / "datasets" / "README.md"
    try:
        before = readme.read_text(encoding="utf-8")
        after = with_descriptions(before, readme.parent)
        if not options.check and after != before:
            with replacing(readme) as temporary:
                temporary.write_text(after, encoding="utf-8")
    except (OSError, UnicodeError, SparseNNError, MarkerError) as error:
        print(f"describe_datasets: {error}", file=sys.stderr)
        return 2
    if options.check and after != before:
        print(f"describe_datasets: {readme} is stale; run tools/describe_datasets.py", file=sys.stderr)
        return 1
    return 0


def with_descriptions(text: str, folder: Path) -> str:
    """Return `text` with the lines between each pair of markers replaced by what the file of that name is."""
    lines: list[str] = []
    kept: list[str] | None = None  # the lines between markers, where they are open
    name = ""
    for number, line in enumerate(text.splitlines(), start=1):
        start, end = START.fullmatch(line.strip()), line.strip() == END
        if (start and kept is not None) or (end and kept is None):
            raise MarkerError(f"README.md:{number}: {line.strip()} where a model {'is open' if start else 'is not'}")
        if start:
            name, kept = start[1], []
            lines.append(line)
        elif end:
            lines += [*_described(folder / name, kept or []), line]
            kept = None
        elif kept is not None:
            kept.append(line)
        else:
            lines.append(line)
    if kept is not None:
        raise MarkerError(f"README.md: model {name} has no {END}")
    return "\n".join(lines) + "\n"


def _described(path: Path, before: list[str]) -> list[str]:
    if not path.is_file():
        print(f"describe_datasets: {path} is not there; what is said of it stays", file=sys.stderr)
        return before
    return ["", *describe(path), ""]


def describe(path: Path) -> list[str]:
    """Return a model as lines of Markdown: its file, how it was made, and its layers."""
    model, content = read_model(path), path.read_bytes()
    network = model.network
    facts = {
        "size": f"{len(content):,} bytes",
        "SHA-256": f"`{hashlib.sha256(content).hexdigest()}`",
        **({"images": _images(model)} if network.image is not None else {}),
        "parameters": f"{network.parameters:,}",
        "multiply-adds of an input": f"{network.multiply_adds:,}",
        **model.provenance,
    }
    rows = [["", "inputs", shape_text(network.shapes[0]), "", ""]]
    for number, layer in enumerate(network, start=1):
        work = layer.multiply_adds((1, *network.input_shapes(number - 1)[0]))
        counts = [f"{count:,}" if count else "–" for count in (layer.parameters, work)]
        rows.append([str(number), layer_title(layer), shape_text(network.shapes[number]), *counts])
    return [
        *_table(["", path.name], ["---", "---"], [[key, fact] for key, fact in facts.items()]),
        "",
        *_table(
            ["layer", "what", "outputs", "parameters", "multiply-adds"], ["---:", "---", "---:", "---:", "---:"], rows
        ),
    ]


def _images(model: Model) -> str:
    smaller = "" if model.resize is None else f"; smaller ones are enlarged ({model.resize})"
    return f"{shape_text(model.network.image or ())} (channels × height × width){smaller}"


def _table(heads: Sequence[str], rules: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    return [_row(row) for row in (heads, rules, *body)]


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


if __name__ == "__main__":
    sys.exit(main())
