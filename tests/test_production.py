"""What production consists of: no circles, and nothing below the studies that only studies need."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from children import python
from test_architecture import FILES, LEVEL, PACKAGE, imports_of, module_of, part_of

Graph = Mapping[str, set[str]]

SOURCES = {module_of(path): path.read_text(encoding="utf-8") for path in FILES}
BELOW = [module for module in SOURCES if LEVEL[part_of(module)] < LEVEL["studies"]]
KERNELS = PACKAGE / "backends" / "cuda" / "kernels"

OF_STUDIES = {
    *("cli.benchmark", "cli.challenge_benchmark", "cli.kernels", "cli.ladder", "cli.problems", "cli.roofline"),
    *("report.benchmark", "report.challenge", "report.ladder", "report.roofline"),
}
"""What is above the studies and imports them."""

NAMES_STUDIES = re.compile(r"sparsenn\.studies|studies/")
INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)


def graph_of(sources: Mapping[str, str], lazily: bool) -> Graph:
    """The modules that each module imports: with those that its functions import, or without."""
    return {
        module: {
            home_of(found.module, sources)
            for found in imports_of(source)
            if found.module.startswith("sparsenn.") and found.module != "sparsenn.__version__"
            if lazily or not found.in_function
        }
        for module, source in sources.items()
    }


def home_of(name: str, modules: Iterable[str]) -> str:
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        for module in (".".join(parts[:length]), ".".join([*parts[:length], "__init__"])):
            if module in modules:
                return module
    raise LookupError(name)


def circle(graph: Graph) -> list[str]:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as found:
        return list(found.args[1])
    return []


def reached(graph: Graph, roots: Iterable[str]) -> set[str]:
    """The modules that importing the roots imports, packages that a module is in among them."""
    found: set[str] = set()
    waiting = list(roots)
    while waiting:
        module = waiting.pop()
        if module not in found:
            found.add(module)
            waiting += graph.get(module, ())
            waiting += (package for package in packages_of(module) if package in graph)
    return found


def packages_of(module: str) -> list[str]:
    parts = module.split(".")
    return [".".join([*parts[:length], "__init__"]) for length in range(1, len(parts))]


def production() -> set[str]:
    """Every module that is imported by something that is not for studies, sooner or later."""
    graph = graph_of(SOURCES, lazily=True)
    others = {module: found for module, found in graph.items() if not is_of_studies(module)}
    others["sparsenn.cli.app"] = {module for module in graph["sparsenn.cli.app"] if not is_of_studies(module)}
    return reached(others, [module for module in others if part_of(module) != "backends"])


def is_of_studies(module: str) -> bool:
    return part_of(module) == "studies" or module.removeprefix("sparsenn.") in OF_STUDIES


def included(path: Path) -> set[Path]:
    """The headers that a source of the engine's own needs, and theirs."""
    names = INCLUDE.findall(path.read_text(encoding="utf-8"))
    found = {next(file for file in (path.parent / name, KERNELS / name) if file.is_file()).resolve() for name in names}
    return found.union(*map(included, found))


def test_no_modules_import_each_other() -> None:
    assert circle(graph_of(SOURCES, lazily=False)) == []


def test_nothing_below_names_a_study() -> None:
    texts = {
        module: [node.value for node in ast.walk(ast.parse(SOURCES[module])) if isinstance(node, ast.Constant)]
        for module in BELOW
    }
    named = {
        module: [text for text in found if isinstance(text, str) and NAMES_STUDIES.search(text)]
        for module, found in texts.items()
    }
    assert {module: found for module, found in named.items() if found} == {}


def test_only_what_is_for_studies_imports_them() -> None:
    graph = graph_of(SOURCES, lazily=True)
    importers = {module for module, found in graph.items() if any(part_of(name) == "studies" for name in found)}
    above = {module.removeprefix("sparsenn.") for module in importers if part_of(module) != "studies"}
    assert above == OF_STUDIES


def test_every_module_of_the_backends_is_of_use_without_studies() -> None:
    modules = {module for module in SOURCES if part_of(module) == "backends"}
    assert modules - production() == set()


def test_every_source_of_the_engines_own_is_declared_by_production() -> None:
    every = [module.removesuffix(".__init__") for module in SOURCES if part_of(module) == "backends"]
    code = f"import importlib, sys\nfor name in {every}: importlib.import_module(name)\n"
    code += "from sparsenn.backends.cuda.runtime.loader import PROGRAMS\n"
    code += "print(*(program.source for program in PROGRAMS), 'sparsenn.studies' in sys.modules)"
    *declared, imports_studies = python("-c", code).stdout.split()
    assert imports_studies == "False"
    assert set(declared) == {path.relative_to(KERNELS).as_posix() for path in KERNELS.rglob("*.cu")}


def test_every_header_of_the_engines_own_is_included_by_its_sources() -> None:
    headers = {path.resolve() for path in KERNELS.rglob("*.cuh")}
    assert headers == set().union(*map(included, KERNELS.rglob("*.cu")))
