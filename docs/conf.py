"""How Sphinx makes the documentation: `./tools/docs`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from sphinx.application import Sphinx

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import sparsenn  # noqa: E402

project, author = "sparsenn", "the sparsenn developers"
release = version = sparsenn.__version__
copyright = f"{author}; MIT licence"  # noqa: A001

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "numpydoc"]
html_theme, html_title = "furo", "sparsenn"
exclude_patterns, templates_path = ["_build", "templates"], ["templates"]
nitpicky = True  # a reference that leads nowhere is an error

myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3

default_role = "code"
autosummary_generate = True
autodoc_typehints = "none"  # docstrings tell types
numpydoc_show_class_members = False

EXAMPLES = re.compile(r"^Examples:\n((?:  .*\n)+)", re.MULTILINE)


def setup(app: Sphinx) -> None:
    """Have the page of all options written by Typer before pages are read."""
    app.connect("builder-inited", lambda app: write_options(HERE / "generated" / "options.md"))


def write_options(page: Path) -> None:
    """Write what the program says of its verbs and options."""
    command = [sys.executable, "-m", "typer", "sparsenn.cli.app", "utils", "docs"]
    command += ["--name", "sparsenn", "--title", "All verbs and options"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=HERE.parent)
    text = EXAMPLES.sub(r"Examples:\n\n```text\n\1```\n", done.stdout)
    page.parent.mkdir(exist_ok=True)
    if not page.exists() or page.read_text(encoding="utf-8") != text:
        page.write_text(text, encoding="utf-8")
