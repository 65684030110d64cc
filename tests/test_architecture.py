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
    """Why a module's __all__ is wrong; None if it is right, or if there is none: then names say what is public."""
    defined, declared, every = public_names(source)
    if declared is None:
        return None
    if missing := defined - declared:
        return f"not in __all__: {', '.join(sorted(missing))}"
    if unknown := declared - every:
        return f"in __all__, but not there: {', '.join(sorted(unknown))}"
    return None


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


def test_every_folder_is_a_package_that_declares_its_public_names() -> None:
    packages = [folder / "__init__.py" for folder in sorted({path.parent for path in FILES})]
    assert [path for path in packages if not path.is_file()] == []
    assert [path for path in packages if public_names(path.read_text(encoding="utf-8"))[1] is None] == []


def test_every_part_of_the_package_has_its_row() -> None:
    parts = {part_of(module_of(path)) for path in FILES}
    assert parts <= set(LEVEL)
    assert {"errors", "formats", "layers", "network", "backends", "engine", "io", "cli"} <= parts
