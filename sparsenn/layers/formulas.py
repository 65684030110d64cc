"""Formulas of element-wise functions, written once: as C++ and Python for kernels, and computed on whole arrays.

A formula is an expression as Python writes it, of `z` and a parameter `p` (a slope is one of an output `y` and `p`):
numbers, `+ - * /`, comparisons, `… if … else …`, and the functions in `FUNCTIONS`. Assignments may come before it,
each with a semicolon behind it.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from sparsenn.formats import Array

FUNCTIONS = ("abs", "erfc", "exp", "expm1", "log1p", "tanh")
"""What a formula may call; each takes one number."""

_SIGNS: dict[type[ast.operator] | type[ast.cmpop], tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Add: ("+", operator.add),
    ast.Sub: ("-", operator.sub),
    ast.Mult: ("*", operator.mul),
    ast.Div: ("/", operator.truediv),
    ast.Lt: ("<", operator.lt),
    ast.LtE: ("<=", operator.le),
    ast.Gt: (">", operator.gt),
    ast.GtE: (">=", operator.ge),
}


def as_cuda(formula: str, *, contract: bool = False) -> str:
    """Return a formula as the body of a C++ function of float32.

    `contract`: whether the compiler may fuse a product with a sum. Otherwise the bits are the same wherever the
    function is inlined.
    """
    product = None if contract else "__fmul_rn"
    return _body(formula, _Words("const float ", ";", lambda name: f"{name}f" if name != "abs" else "fabsf",
                                 lambda number: f"{float(number)!r}f", "({0} ? {1} : {2})", product))  # fmt: skip


def as_python(formula: str, result: str) -> list[str]:
    """Return a formula as lines of Python on float32, which numba compiles.

    Numbers are `float32(…)`, and functions have their own names.
    """
    words = _Words(
        "",
        "",
        str,
        lambda number: f"float32({number!r})",
        "({1} if {0} else {2})",
        None,
        "float32({0})",
    )
    return _body(formula, words, result).split("\n")


class _Words:
    """How a language writes what formulas consist of."""

    def __init__(
        self,
        declare: str,
        end: str,
        function: Callable[[str], str],
        number: Callable[[float], str],
        choice: str,
        product: str | None,
        rounded: str = "{0}",
    ) -> None:
        self.declare, self.end, self.choice, self.product, self.rounded = declare, end, choice, product, rounded
        self.function, self.number = function, number

    def __call__(self, node: ast.expr) -> str:
        """Return an expression in the language, in brackets where it needs them."""
        match node:
            case ast.Constant(value=int() | float() as number):
                return self.number(number)
            case ast.Name(id=name):
                return name
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return f"-{self(operand)}"
            case ast.BinOp(left=left, op=ast.Mult(), right=right) if self.product:
                return f"{self.product}({self(left)}, {self(right)})"
            case (
                ast.BinOp(left=left, op=sign, right=right) | ast.Compare(left=left, ops=[sign], comparators=[right])
            ) if type(sign) in _SIGNS:
                return f"({self(left)} {_SIGNS[type(sign)][0]} {self(right)})"
            case ast.IfExp(test=test, body=body, orelse=other):
                return self.choice.format(self(test), self(body), self(other))
            case ast.Call(func=ast.Name(id=name), args=[argument]) if name in FUNCTIONS:
                return self.rounded.format(f"{self.function(name)}({self(argument)})")
        raise _unknown(node)


def _unknown(node: ast.AST) -> AssertionError:
    return AssertionError(f"{ast.unparse(node)} is no part of a formula")


def _body(formula: str, words: _Words, result: str = "return") -> str:
    assignments, value = _parsed(formula)
    lines = [f"{words.declare}{name} = {words(assigned)}{words.end}" for name, assigned in assignments]
    return "\n".join([*lines, f"{result} {words(value)}{words.end}"])


@cache
def _parsed(formula: str) -> tuple[tuple[tuple[str, ast.expr], ...], ast.expr]:
    *statements, last = ast.parse(formula).body
    assignments = []
    for statement in statements:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                assignments.append((name, value))
            case _:
                raise _unknown(statement)
    if not isinstance(last, ast.Expr):
        raise _unknown(last)
    return tuple(assignments), last.value


def numpy_function(name: str) -> Callable[..., Any]:
    """Return a function of whole arrays, `where` or one of `FUNCTIONS`."""
    library = import_module("scipy.special") if name == "erfc" else np
    function: Callable[..., Any] = getattr(library, name)
    return function


def evaluate(formula: str, function: Callable[[str], Callable[..., Any]] = numpy_function, **variables: Any) -> Array:
    """Compute a formula on whole arrays of one type, without warnings.

    Parameters
    ----------
    function : returns what computes `where`, or one of `FUNCTIONS`, on arrays.
    variables : arrays, and numbers, by the names that the formula has for them. The result is of the first one's type.
    """
    dtype = next(iter(variables.values())).dtype
    known = {name: dtype.type(value) if isinstance(value, float) else value for name, value in variables.items()}

    def value_of(node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=int() | float() as number):
                return dtype.type(number)
            case ast.Name(id=name):
                return known[name]
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -value_of(operand)
            case (
                ast.BinOp(left=left, op=sign, right=right) | ast.Compare(left=left, ops=[sign], comparators=[right])
            ) if type(sign) in _SIGNS:
                return _SIGNS[type(sign)][1](value_of(left), value_of(right))
            case ast.IfExp(test=test, body=body, orelse=other):
                return function("where")(value_of(test), value_of(body), value_of(other))
            case ast.Call(func=ast.Name(id=name), args=[argument]) if name in FUNCTIONS:
                return function(name)(value_of(argument))
        raise _unknown(node)

    assignments, result = _parsed(formula)
    with np.errstate(all="ignore"):
        for name, node in assignments:
            known[name] = value_of(node)
        found: Array = value_of(result)
    return found
