"""The README, docs/ and CONTRIBUTING: code runs as it stands, commands have their options, links lead somewhere."""

from __future__ import annotations

import ast
import importlib.util
import re
import runpy
import shlex
import shutil
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer.main
from children import python

import sparsenn
from sparsenn.cli.app import app

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
NAMES = [page.relative_to(ROOT).as_posix() for page in PAGES]
PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)
CODE = re.compile(r"^```([^\n]*)\n(.*?)^```|((?:^    .*\n)+)", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"^ *(?:[A-Z_]+=\S+ )?(?:\./tools/)?sparsenn ([a-z].*)$", re.MULTILINE)
INLINE = re.compile(r"`sparsenn\s+([a-z][^`]*)`")
LIBRARIES = "torch", "sklearn", "onnx", "dask", "cupy", "pandas"

GIVEN = """
import numpy as np
import sparsenn

network = sparsenn.Network.from_scipy([np.eye(20, 30), np.eye(30, 10)])
rows = np.random.default_rng(0).random((1000, 20), np.float32)
np.savetxt("rows.csv", rows, delimiter=",")
"""
"""What pages take for granted: a network, and rows for it, in a file, too."""

FLOWERS = "length,width,species\n" + "".join(f"{n % 7},{n % 3},{'ab'[n % 2]}\n" for n in range(40))


def of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", [page for page in NAMES if PYTHON.search(of(page))])
def test_code_runs_as_it_stands(page: str, tmp_path: Path) -> None:
    """All of a page, in one process."""
    code = "".join(PYTHON.findall(of(page)))
    needed = {name for name in LIBRARIES if re.search(rf"^(?:import|from) {name}\b", code, re.MULTILINE)}
    needed |= {"onnx"} if "onnx" in code else set()
    needed |= {"dask"} if "local_cluster" in code else set()
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    (tmp_path / "datasets").symlink_to(ROOT / "datasets")
    (tmp_path / "iris.csv").write_text(FLOWERS)
    (tmp_path / "new_flowers.csv").write_text(FLOWERS.replace(",species", "").replace(",a", "").replace(",b", ""))
    inputs = np.arange(320.0).reshape(40, 8) % 9
    np.savez(tmp_path / "abalone.npz", inputs=inputs, targets=inputs[:, :1])
    given = GIVEN + ('sparsenn.to_onnx(network, "network.onnx")\n' if "onnx" in needed else "")
    done = python("-c", given + code, folder=tmp_path)
    assert done.returncode == 0, done.stderr


def test_files_of_examples_are_run_from_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text("".join(PYTHON.findall(of("docs/python.md"))))
    command = "sparsenn infer example.h5 --output found.tsv"
    assert f"\n    {command}\n" in of("docs/python.md")
    for arguments in (["code.py"], ["-m", *command.split()]):
        done = python(*arguments, folder=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "found.tsv").read_text()


def commands() -> Iterator[tuple[str, str]]:
    for page in NAMES:
        for kind, fenced, indented in CODE.findall(of(page)):
            text = indented or fenced * (kind in ("", "bash", "text"))
            for line in COMMAND.findall(text.replace("\\" + "\n", " ")):
                yield page, line.split("  #")[0].strip()
        for line in INLINE.findall(of(page)):
            yield page, " ".join(line.split())


def known(command: Any, words: list[str]) -> tuple[Any, list[str]]:
    """The verb that words begin with, which may be one of a group, and the words behind it."""
    while hasattr(command, "commands"):
        if not words or words[0] not in command.commands:
            return None, words
        command, words = command.commands[words[0]], words[1:]
    return command, words


def unknown(line: str, program: Any) -> list[str]:
    """The words of a command that the program does not know: its verb, or options."""
    words = shlex.split(line)
    verb, rest = known(program, words)
    if verb is None:
        return words[:1]
    options = {option for one in verb.params for option in (*one.opts, *one.secondary_opts)} | {"--help", "-h"}
    return [word for word in rest if word.startswith("--") and word.split("=")[0] not in options]


def test_commands_have_the_options_they_use() -> None:
    program = typer.main.get_command(app)
    found = {f"{page}: {line}": unknown(line, program) for page, line in commands()}
    assert len(found) > 50
    assert {place: words for place, words in found.items() if words} == {}
    assert unknown("infer a.h5 --novelty", program) == ["--novelty"]


def test_the_readme_is_short() -> None:
    assert len(of("README.md").splitlines()) <= 180


def test_links_lead_somewhere() -> None:
    links = [(page, link) for page in NAMES for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", of(page))]
    inner = [(page, link) for page, link in links if "://" not in link]
    assert len(inner) > 50
    assert [found for found in inner if not ((ROOT / found[0]).parent / found[1]).exists()] == []


def test_drawings_are_what_their_script_draws() -> None:
    folder = ROOT / "docs" / "drawings"
    drawings = {f"{name}.svg": draw() for name, draw in runpy.run_path(str(folder / "draw.py"))["DRAWINGS"].items()}
    assert {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.svg")} == drawings
    shown = {name for page in NAMES for name in re.findall(r"\(drawings/(\S+\.svg)\)", of(page))}
    assert shown == set(drawings)


def test_every_page_has_its_place() -> None:
    index = of("docs/index.md").splitlines()
    for page in (ROOT / "docs").glob("*.md"):
        assert page.stem == "index" or page.stem in index, f"docs/index.md does not list {page.stem}"


def test_the_page_of_the_api_has_all_public_names() -> None:
    listed = {line.strip() for line in of("docs/api.md").splitlines()}
    assert set(sparsenn.__all__) <= listed


@pytest.mark.slow
def test_the_activation_of_the_recipe_runs_once_it_is_in_the_table(tmp_path: Path) -> None:
    """In a copy of the package; its code is compiled anew."""
    shutil.copytree(ROOT / "sparsenn", tmp_path / "sparsenn", ignore=shutil.ignore_patterns("__pycache__"))
    recipe = of("docs/architecture.md").partition("## Adding an activation")[2]
    row = recipe[recipe.index("@dataclass") : recipe.index("```\n\n| file")]
    table = tmp_path / "sparsenn" / "layers" / "activation.py"
    table.write_text(f"{table.read_text()}\n\n{row}\nACTIVATIONS = (*ACTIVATIONS, Gaussian)\n")
    code = """
        import numpy as np, scipy.sparse as sp, sparsenn
        from sparsenn.layers.activation import Gaussian
        weights = sp.random(30, 20, 0.2, random_state=0)
        network = sparsenn.Network.from_scipy([weights], activation=Gaussian())
        rows = np.random.default_rng(0).normal(size=(50, 30))
        for device in ("reference", "cpu"):
            outputs = sparsenn.Session(network, device=device)(rows)
            np.testing.assert_allclose(outputs, np.exp(-((rows @ weights) ** 2)), rtol=1e-4, atol=1e-6)
        assert network[0].activation == sparsenn.layers.activation_named("gaussian")
        print(sparsenn.__file__)
    """
    environment = {"PYTHONPATH": tmp_path, "SPARSENN_CACHE": tmp_path / "cache"}
    done = python("-c", textwrap.dedent(code), folder=tmp_path, **environment)
    assert (done.returncode, done.stdout.strip()) == (0, str(tmp_path / "sparsenn" / "__init__.py")), done.stderr


def test_cells_of_the_page_of_notebooks_show_tables_and_a_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a notebook's kernel runs them: each shows its last expression as HTML or PNG, where that can be."""
    pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    shown: list[Any] = []
    names: dict[str, Any] = {}
    for cell in PYTHON.findall(of("docs/notebooks.md")):
        *statements, last = ast.parse(cell).body
        if not isinstance(last, ast.Expr):
            statements.append(last)
        exec(compile(ast.Module(statements, []), "<cell>", "exec"), names)
        if isinstance(last, ast.Expr):
            shown.append(eval(compile(ast.Expression(last.value), "<cell>", "eval"), names))
    assert [type(value).__name__ for value in shown] == ["Network", "Plan", "Result", "DataFrame", "Picture"]
    assert all("<table" in value._repr_html_() for value in shown[:-1])
    assert shown[-1]._repr_png_().startswith(b"\x89PNG")


def test_the_page_of_options_has_all_verbs(tmp_path: Path) -> None:
    """As `docs/conf.py` has it written."""
    done = python("-m", "typer", "sparsenn.cli.app", "utils", "docs", "--name", "sparsenn", folder=ROOT)
    assert done.returncode == 0, done.stderr
    for name in typer.main.get_command(app).commands:
        assert f"## `sparsenn {name}`" in done.stdout
