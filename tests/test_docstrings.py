"""What public names say of themselves, in numpydoc's form: each parameter and result with its type and a sentence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cached_property
from importlib import import_module
from types import FunctionType

import pytest

MODULES = (
    "sparsenn",
    "sparsenn.datasets",
    "sparsenn.distributed",
    "sparsenn.io",
    "sparsenn.torch",
    "sparsenn.training",
)
ALSO = (("sparsenn.engine", "Options"), ("sparsenn.engine", "Seconds"))
"""Whose names are public, and what else public functions take or return."""

CHECKS = {
    *("GL01", "GL02", "GL03", "GL05", "GL06", "GL07", "GL08", "GL10"),  # sections: known, in order, spelt and spaced
    *("SS01", "SS02", "SS03", "SS04", "SS05", "SS06"),  # a summary, one line, a sentence
    *("PR01", "PR02", "PR03", "PR04", "PR05", "PR06", "PR07", "PR08", "PR09", "PR10"),  # parameters
    *("RT01", "RT02", "RT03", "RT04", "RT05", "YD01"),  # what is returned or yielded
}
"""Those of numpydoc that hold here, by its codes. The others ask for examples, further sections and links."""


def public_objects() -> Iterator[str]:
    """Yield the homes of all public functions and classes, and of the public members that a class defines."""
    listed = [(module, name) for module in MODULES for name in import_module(module).__all__]
    for module, name in (*listed, *ALSO):
        item = getattr(import_module(module), name)
        if isinstance(item, FunctionType | type):
            home = f"{item.__module__}.{item.__qualname__}"
            yield home
            yield from (f"{home}.{member}" for member in (_members(item) if isinstance(item, type) else ()))


def _members(item: type) -> list[str]:
    kinds = FunctionType | classmethod | staticmethod | property | cached_property
    data = {field.name for field in fields(item)} if is_dataclass(item) else set()
    return [
        name
        for name, member in vars(item).items()
        if isinstance(member, kinds) and not name.startswith("_") and name not in data
    ]


NAMES = sorted({*public_objects()})


def test_docstrings_are_in_numpydocs_form() -> None:
    validation = pytest.importorskip("numpydoc.validate", reason="needs numpydoc")
    faults = [(name, code, said) for name in NAMES for code, said in validation.validate(name)["errors"]]
    assert [fault for fault in faults if fault[1] in CHECKS] == []


def test_the_public_names_are_looked_at() -> None:
    assert len(NAMES) > 150
    assert {
        "sparsenn.engine.session.plan",
        "sparsenn.network.Network.from_scipy",
        "sparsenn.io.arrays.idx.read_idx",
    } <= set(NAMES)
