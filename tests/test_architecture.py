"""The shape of the package: who imports whom, what a module is called, how long it is, what it declares public."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import sparsenn

PACKAGE = Path(sparsenn.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))

ROWS = (
    ("printable",),
    ("errors", "plugins"),
    ("runtime",),
    ("formats",),
    ("layers",),
    ("graph",),
    ("network",),
    ("model",),
    ("backends", "structure"),
    ("io",),
    ("engine",),
    ("studies",),
    ("distributed", "report", "datasets", "training", "interop"),
    ("torch", "predictions"),
    ("cli",),
    ("__init__", "__main__"),
)
LEVEL = {part: level for level, row in enumerate(ROWS) for part in row}
USERS = {"matplotlib": "draws", "pyarrow": "parses or writes"}
"""What functions do that import a library which others need not wait for."""

LONGEST_FILE = 450
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "misc"}
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class Import(NamedTuple):
    line: int
    module: str  # absolute, dotted; a name imported from a package counts as part of it
    in_function: bool
    for_typing: bool


def module_of(path: Path, package: Path = PACKAGE) -> str:
    """The dotted name of a file, ending in __init__ for a package."""
    return ".".join([package.name, *path.relative_to(package).with_suffix("").parts])


def imports_of(source: str) -> Iterator[Import]:
    """Every import in the source, also inside functions, and by name through importlib where that is a literal."""

    def walk(node: ast.AST, in_function: bool, for_typing: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(node.lineno, alias.name, in_function, for_typing)
        elif isinstance(node, ast.ImportFrom):
            origin = "." * node.level + (node.module or "")
            for alias in node.names:
                yield Import(node.lineno, f"{origin}.{alias.name}", in_function, for_typing)
        elif isinstance(node, ast.Call) and (name := _named_import(node)):
            yield Import(node.lineno, name, in_function, for_typing)
        function = in_function or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        typing = for_typing or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
        for child in ast.iter_child_nodes(node):
            yield from walk(child, function, typing)

    return walk(ast.parse(source), False, False)


def _named_import(call: ast.Call) -> str | None:
    by_name = ast.unparse(call.func).split(".")[-1] in ("import_module", "__import__")
    first = call.args[0] if call.args else None
    return str(first.value) if by_name and isinstance(first, ast.Constant) else None


def part_of(module: str) -> str:
    """The part of the package that a dotted name belongs to; the package's own names belong to its __init__."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and (parts[1] in LEVEL or not parts[1].startswith("_")) else "__init__"


def direction_fault(importer: str, imported: str) -> str | None:
    """Why `importer` may not import `imported`, two dotted names within the package; None if it may."""
    if imported == "sparsenn.__version__":
        return None  # a plain constant, there before anything is imported
    here, there = part_of(importer), part_of(imported)
    for part in (here, there):
        if part not in LEVEL:
            return f"{part} has no row in the import order"
    if here == there:
        return None
    if LEVEL[there] > LEVEL[here]:
        return f"{here} may not import {there}, which is above it"
    if LEVEL[there] == LEVEL[here] and here not in ROWS[-1]:
        return f"{here} may not import {there}, which is beside it"
    return None


def faults(source: str, module: str) -> list[str]:
    """All imports of a module that break a rule, as "line: why"."""
    found = []
    for line, imported, in_function, for_typing in imports_of(source):
        root = imported.split(".")[0]
        if not root:
            found.append(f"{line}: relative import {imported}")
        elif root == "sparsenn" and (fault := direction_fault(module, imported)):
            found.append(f"{line}: {fault}")
        elif root in ("cupy", "cupyx") and not module.startswith("sparsenn.backends.cuda."):
            found.append(f"{line}: only sparsenn.backends.cuda imports {root}")
        elif root in USERS and not in_function and not for_typing:
            found.append(f"{line}: {root} is imported by the function that {USERS[root]}, not by the module")
    return found


def public_names(source: str) -> tuple[set[str], set[str] | None, set[str]]:
    """Public functions and classes of a module; the names in its __all__, if there is one; all its names."""
    body = ast.parse(source).body
    defined = {node.name for node in body if isinstance(node, DEFINITIONS)}
    declared: set[str] | None = None
    every = set(defined)
    for node in ast.walk(ast.Module([node for node in body if not isinstance(node, DEFINITIONS)], [])):
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["__all__"]:
            declared = set(ast.literal_eval(node.value))
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            every.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            every |= {alias.asname or alias.name for alias in node.names}
    return {name for name in defined if not name.startswith("_")}, declared, every


def publication_fault(source: str) -> str | None:
    """Why a module's __all__ is wrong; None if it is right, or if the module has nothing to publish."""
    defined, declared, every = public_names(source)
    if declared is None:
        return f"no __all__, but it defines {', '.join(sorted(defined))}" if defined else None
    if missing := defined - declared:
        return f"not in __all__: {', '.join(sorted(missing))}"
    if unknown := declared - every:
        return f"in __all__, but not there: {', '.join(sorted(unknown))}"
    return None


def only_passes_on(source: str) -> bool:
    """Whether a module does nothing but import names and publish them again."""
    body = [node for node in ast.parse(source).body if not isinstance(node, ast.Import | ast.ImportFrom)]
    rest = [node for node in body if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant)]
    return len(rest) == 1 and isinstance(rest[0], ast.Assign) and ast.unparse(rest[0].targets[0]) == "__all__"


def broken(rule: Callable[[str, str], Iterable[str]], files: Iterable[Path] = FILES) -> list[str]:
    """All that a rule finds in the files, each with the module before it."""
    return [
        f"{module}: {fault}"
        for path in files
        for module in [module_of(path)]
        for fault in rule(path.read_text(encoding="utf-8"), module)
    ]


def test_imports_point_downward() -> None:
    assert broken(faults) == []


def test_files_are_short() -> None:
    lengths = {module_of(path): len(path.read_text(encoding="utf-8").splitlines()) for path in FILES}
    assert {module: length for module, length in lengths.items() if length >= LONGEST_FILE} == {}


def test_no_module_has_a_vague_name() -> None:
    assert [module for module in map(module_of, FILES) if VAGUE_NAMES & set(module.split("."))] == []


def test_public_names_are_declared() -> None:
    assert broken(lambda source, module: filter(None, [publication_fault(source)])) == []


def test_a_name_is_imported_from_its_home() -> None:
    modules = [path for path in FILES if path.name != "__init__.py"]
    assert [module_of(path) for path in modules if only_passes_on(path.read_text(encoding="utf-8"))] == []


def test_every_folder_is_a_package_that_declares_its_public_names() -> None:
    packages = [folder / "__init__.py" for folder in sorted({path.parent for path in FILES})]
    assert [path for path in packages if not path.is_file()] == []
    assert [path for path in packages if public_names(path.read_text(encoding="utf-8"))[1] is None] == []


def test_every_part_of_the_package_has_its_row() -> None:
    parts = {part_of(module_of(path)) for path in FILES}
    assert parts <= set(LEVEL)
    assert {"errors", "formats", "layers", "network", "backends", "engine", "io", "cli"} <= parts


UNLAWFUL = (
    ("formats.csr", "from sparsenn.layers import ReLU", "formats may not import layers, which is above it"),
    ("formats.csr", "import numpy, sparsenn.engine", "formats may not import engine"),
    ("formats.csr", "from sparsenn import network", "formats may not import network"),
    ("formats.csr", "from sparsenn import Network", "Network has no row"),
    ("formats.csr", "import sparsenn", "formats may not import __init__"),
    ("formats.csr", "def f():\n    from sparsenn.cli import main", "2: formats may not import cli"),
    ("formats.csr", "if TYPE_CHECKING:\n    from sparsenn.io import Dataset", "formats may not import io"),
    ("formats.csr", "import importlib\nimportlib.import_module('sparsenn.io')", "2: formats may not import io"),
    ("formats.csr", "from ..layers import ReLU", "relative import"),
    ("novelty.x", "from sparsenn.errors import InputError", "novelty has no row"),
    ("engine.plan", "def f():\n    import sparsenn.studies", "2: engine may not import studies"),
    ("report.tables", "from sparsenn.datasets import load", "report may not import datasets, which is beside it"),
    ("backends.cpu.x", "def f():\n    import cupy as cp", "only sparsenn.backends.cuda imports cupy"),
    ("backends.cudalike.x", "from cupyx.scipy import sparse", "only sparsenn.backends.cuda imports cupyx"),
    ("backends.cpu.x", "cupy = import_module('cupy')", "only sparsenn.backends.cuda imports cupy"),
    ("report.plots", "class A:\n    import matplotlib", "matplotlib is imported by the function"),
    ("io.text", "from pyarrow import csv", "pyarrow is imported by the function that parses"),
)
LAWFUL = (
    ("formats.csr", "from sparsenn.errors import MatrixError\nfrom sparsenn.formats import COO"),
    ("formats.csr", "from sparsenn import errors, runtime"),
    ("io.hdf5", "from sparsenn import __version__"),
    ("cli.infer", "from sparsenn.report import summary\nfrom sparsenn.datasets import load"),
    ("__main__", "from sparsenn.cli import main\nimport sparsenn"),
    ("backends.cuda.loader", "import cupy\nfrom cupyx.scipy import sparse"),
    ("report.plots", "def draw():\n    import matplotlib\n    class A:\n        from matplotlib import figure"),
    ("report.plots", "if TYPE_CHECKING:\n    from matplotlib.axes import Axes"),
    ("engine.plan", "import sparsennlike, cupyish, matplotlibx"),
)


def test_planted_imports_are_found() -> None:
    for module, source, why in UNLAWFUL:
        (found,) = faults(f"{source}\n", f"sparsenn.{module}")
        assert why in found
    assert [found for module, source in LAWFUL for found in faults(source, f"sparsenn.{module}")] == []


def test_planted_publications_are_found() -> None:
    unlawful = {
        "def f(): ...": "no __all__, but it defines f",
        "class A: ...\n__all__ = []": "not in __all__: A",
        "__all__ = ['A']": "in __all__, but not there: A",
        "__all__ = ['A']\ndef f():\n    A = 1\n": "not in __all__: f",
    }
    assert {source: publication_fault(source) for source in unlawful} == unlawful
    lawful = (
        *("", "x = 1", "def _f(): ...", "__all__ = ['A']\nif TYPE_CHECKING:\n    from a import A"),
        "__all__ = ['A', 'f', 'b', 'LIMIT']\nclass A: ...\ndef f(): ...\nfrom a import b\nLIMIT: int = 3",
    )
    assert [source for source in lawful if publication_fault(source)] == []


def test_planted_modules_that_only_pass_names_on_are_found() -> None:
    expected = {
        "'Words.'\nfrom a import b\n__all__ = ['b']": True,
        "from a import b\n__all__ = ['b', 'c']\nc = b": False,
        "from a import b\n__all__ = []\nb()": False,
        "import a": False,
        "": False,
    }
    assert {source: only_passes_on(source) for source in expected} == expected


def test_module_names_come_from_paths() -> None:
    assert module_of(PACKAGE / "io" / "challenge" / "tsv.py") == "sparsenn.io.challenge.tsv"
    names = ("", ".__init__", ".io", ".io.challenge.tsv", ".__version__")
    parts = [part_of(f"sparsenn{name}") for name in names]
    assert parts == ["__init__", "__init__", "io", "io", "__init__"]
