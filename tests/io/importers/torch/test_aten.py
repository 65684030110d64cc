"""PyTorch's operators with any arguments: layers compute the same numbers, or the arguments are refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from torch_modules import Called, check

from sparsenn.engine import Session
from sparsenn.errors import InputError
from sparsenn.io import from_torch

torch = pytest.importorskip("torch", reason="needs PyTorch")
functional = torch.nn.functional

operators = pytest.importorskip("sparsenn.io.importers.torch.aten")
OPERATORS, apply_operator = operators.OPERATORS, operators.apply_operator

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")

CHANNELS = 2
SHAPES = ((CHANNELS,), (CHANNELS, 6), (CHANNELS, 6, 6))

NUMBERS = st.sampled_from([1, -1, 0, 0.5, -0.3, 2, True, float("inf")])
SIZES = st.lists(st.integers(0, 3), min_size=1, max_size=2) | st.integers(1, 3).map(lambda size: [size] * 2)
AXES = st.integers(-4, 3)


def normal(*shape: int) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def signal(rows: Any, rank: int = 4) -> Any:
    """What an operator is given: something computed from the rows."""
    return rows.neg()


CONSTANTS = st.sampled_from([(), (1,), (CHANNELS,), (CHANNELS, 1), (CHANNELS, 1, 1), (1, CHANNELS), (3, 1), (6,)]).map(
    lambda shape: normal(*shape)
)

BY_NAME: dict[str, st.SearchStrategy[Any]] = {
    "dim": AXES | st.lists(AXES, min_size=0, max_size=2) | st.sampled_from([[-1, -2], [2, 3], [2], None]),
    "size": st.sampled_from(
        [[-1, 12], [-1, 72], [-1, CHANNELS], [-1, 6], [-1, CHANNELS, 6], [-1, CHANNELS, 6, 1], [2, -1]]
    ),
    "sizes": st.sampled_from([[1, CHANNELS], [CHANNELS, 1], [3, 2], [-1, 1]]),
    "pad": st.lists(st.integers(-1, 2), min_size=1, max_size=5),
    "mode": st.sampled_from(["constant", "reflect", "replicate"]),
    "padding": SIZES | st.sampled_from(["same", "valid"]),
    "normalized_shape": st.sampled_from([[3], [6], [2], [3, 2], [CHANNELS, 3, 2]]),
    "output_size": st.lists(st.integers(1, 6), min_size=1, max_size=2),
    "groups": st.integers(1, 2),
    "eps": st.sampled_from([1e-5, 0.1]),
    "running_mean": st.just(torch.tensor([0.5, -1.0])) | st.none(),
    "running_var": st.just(torch.tensor([0.5, 2.0])) | st.none(),
    "bias": st.none() | st.just(torch.tensor([0.25, -4.0])) | st.just(normal(3)),
    "mat1": st.just(signal),
    "mat2": st.just(normal(CHANNELS, 3)),
    "weight": st.sampled_from(
        [(3, CHANNELS), (3, CHANNELS, 3), (2, 1, 2), (3, CHANNELS, 3, 2), (2, 1, 1, 1), (1,), (CHANNELS,)]
    ).map(lambda shape: normal(*shape)),
    "other": NUMBERS | CONSTANTS | st.just(signal) | st.just(normal(CHANNELS, 3)),
    "divisor_override": st.none() | st.integers(1, 5),
    "indices": st.sampled_from([[None, torch.tensor([1, 0])], [None, None, torch.tensor([2, 0, -1])]]),
    "index": AXES | st.just(torch.tensor([1, 0, 1])),
    "split_size": st.integers(1, 4) | st.just([1, 1]) | st.just([2, 4]),
    "split_sizes": st.sampled_from([[1, 1], [2, 4], [3, 3]]),
    "chunks": st.integers(1, 4),
    "length": st.integers(1, 3),
    "step": st.integers(1, 3),
    "start_dim": AXES,
    "end_dim": AXES,
    "memory_format": st.sampled_from([torch.contiguous_format, torch.preserve_format, torch.channels_last]),
}

BY_TYPE: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "int": AXES,
    "float": st.sampled_from([0.1, 0.5, 1.0]),
    "number": NUMBERS,
    "Tensor": CONSTANTS | st.just(signal),
    "List[int]": SIZES,
}


def overloads(name: str) -> Iterator[Any]:
    """Every form of an operator that gives a tensor, those that change one in place included."""
    for each in (name, name + "_"):
        packet = getattr(torch.ops.aten, each, None)
        for overload in packet.overloads() if packet else ():
            operator = getattr(packet, overload)
            first = operator._schema.arguments[0]
            if "out" not in overload and "Dimname" not in str(operator._schema) and "Tensor" in str(first.type):
                yield operator


def drawn(data: st.DataObject, argument: Any) -> Any:
    """A value of an argument, of a kind that the argument takes."""
    kind = str(argument.type)
    if "dtype" in argument.name:
        return data.draw(
            st.sampled_from([None, torch.float32, torch.float64, torch.float16, torch.int32]), argument.name
        )
    if kind == "List[Tensor]":
        return data.draw(st.lists(st.just(signal) | CONSTANTS, min_size=1, max_size=3), argument.name)
    if argument.has_default_value() and data.draw(st.booleans(), f"default of {argument.name}"):
        return argument.default_value
    bare = kind.removeprefix("Optional[").removesuffix("]") if kind.startswith("Optional") else kind
    strategy = BY_NAME.get(argument.name, BY_TYPE.get(bare))
    return reject() if strategy is None else data.draw(strategy, argument.name)


class Applied(torch.nn.Module):
    """An operator on what is computed from the rows, whose results may be seen through the tensor that it was given."""

    def __init__(self, operator: Any, arguments: list[Any], through_view: bool) -> None:
        super().__init__()
        self.operator, self.arguments, self.through_view = operator, arguments, through_view

    def forward(self, rows: Any) -> Any:
        base = signal(rows)
        own = base.view(base.shape) if self.through_view else base
        values = [
            [self.given(part, own) for part in each] if isinstance(each, list) else self.given(each, own)
            for each in self.arguments
        ]
        names = [argument.name for argument in self.operator._schema.arguments]
        positional = {argument.name for argument in self.operator._schema.arguments if not argument.kwarg_only}
        found = self.operator(
            *(value for name, value in zip(names, values, strict=True) if name in positional),
            **{name: value for name, value in zip(names, values, strict=True) if name not in positional},
        )
        found = found[0] if isinstance(found, tuple) else found[-1] if isinstance(found, list) else found
        return base + 1 if self.through_view and self.operator._schema.is_mutable else found + 1

    @staticmethod
    def given(value: Any, own: Any) -> Any:
        return own if value is signal else value


@pytest.mark.parametrize("name", OPERATORS)
@settings(max_examples=5, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_operators_with_any_arguments(name: str, data: st.DataObject) -> None:
    operator = data.draw(st.sampled_from(list(overloads(name))), "operator")
    first, *others = operator._schema.arguments
    arguments = [drawn(data, first) if str(first.type) == "List[Tensor]" or name == "addmm" else signal]
    arguments += [drawn(data, argument) for argument in others]
    module = Applied(operator, arguments, data.draw(st.booleans(), "through a view")).eval()
    shape = data.draw(st.sampled_from(SHAPES), "shape")
    rows = 3 * normal(data.draw(st.integers(1, 4), "rows"), *shape)
    try:
        expected = module(rows)
    except (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError):
        reject()
    example = torch.zeros(data.draw(st.integers(1, 4), "rows of the example"), *shape)
    with suppress(InputError):
        network = from_torch(module, example)
        found = Session(network, device="reference")(rows.reshape(len(rows), -1).numpy())
        np.testing.assert_allclose(found.reshape(expected.shape), expected.numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", OPERATORS)
def test_arguments_that_are_not_named_are_refused(name: str) -> None:
    schema = next(overloads(name))._schema
    known = OPERATORS[name]
    added = ", float novelty) ->" if "*, " in str(schema) else ", *, float novelty) ->"
    novel = torch._C.parse_schema(str(schema).replace(") ->", added, 1))
    values = {argument.name: 1.0 for argument in schema.arguments if argument.name not in (*known.only, *known.signals)}
    settled = {argument: values[0] for argument, values in known.only.items()}
    with pytest.raises(InputError, match=r"novelty=2\.0"):
        apply_operator(novel, {**dict.fromkeys(known.signals), **values, **settled, "novelty": 2.0}, (-1, 3))


def through_view(rows: Any) -> Any:
    rows = rows.neg()
    rows.view(-1, 4).relu_()
    rows.flatten(1).mul_(2)
    return rows


def through_detach(rows: Any) -> Any:
    rows = rows.neg()
    rows.detach().add_(1)
    return rows


def through_the_input(rows: Any) -> Any:
    rows.clamp_(-0.5, 0.25)
    return rows.sigmoid_()


def beside_constants(rows: Any) -> Any:
    return rows + torch.zeros(4).add_(2).mul_(torch.arange(4.0))


IN_PLACE = [through_view, through_detach, through_the_input, beside_constants]


@pytest.mark.parametrize("function", IN_PLACE)
def test_changes_in_place_are_seen_through_every_tensor(function: Any) -> None:
    check(Called(lambda rows: function(rows.clone())), (4,))
    module, rows = Called(function), normal(3, 4)
    found = Session(from_torch(module, rows), device="reference")(rows.numpy())
    np.testing.assert_allclose(found, module(rows.clone()).numpy(), rtol=1e-5, atol=1e-6)


def test_multiples_of_either_side() -> None:
    ones = torch.arange(4.0)
    for function in (
        lambda rows: torch.add(ones, rows, alpha=3),
        lambda rows: torch.sub(ones, rows, alpha=3),
        lambda rows: torch.rsub(rows, 2, alpha=-0.5),
        lambda rows: torch.sub(rows, rows.relu(), alpha=0.5),
        lambda rows: torch.add(rows, rows.relu(), alpha=0),
    ):
        check(Called(function), (4,))


class Counting(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, rows: Any) -> Any:
        return rows * self.calls.add_(1)


REFUSED: dict[str, tuple[Any, str]] = {
    "rounded": (lambda rows: torch.div(rows, 0.3, rounding_mode="floor"), "rounding_mode='floor'; only None"),
    "own statistics": (
        lambda rows: functional.batch_norm(rows, torch.zeros(4), torch.ones(4), training=True),
        "training=True; only False",
    ),
    "other type": (lambda rows: rows.view(torch.int32), r"dtype=torch\.int32, which is not supported"),
    "short result": (lambda rows: rows.softmax(1, dtype=torch.float16), r"dtype=torch\.float16; only None or"),
    "mean of all": (lambda rows: rows - rows.mean(), "mean over dimensions None"),
    "divided by rows": (lambda rows: rows / rows.shape[0], "other computed from the number of rows"),
    "times rows": (lambda rows: rows * len(rows), "the number of rows"),
    "branch of rows": (lambda rows: rows if len(rows) > 5 else -rows, "the number of rows"),
    "constant of rows": (lambda rows: rows + torch.ones(len(rows), 4), "the number of rows"),
    "ones of rows": (lambda rows: rows + rows.new_ones(rows.shape[0], 4), "new_ones|the number of rows"),
    "random": (lambda rows: rows + torch.rand(4), "draws random numbers"),
    "several bounds": (lambda rows: rows.clamp(min=torch.zeros(4)), "the min holds 4 numbers"),
    "complex": (lambda rows: (rows * 2j).real, "complex numbers"),
    "integers": (lambda rows: rows.int() * 2, "aten.to.dtype"),
    "constant output": (lambda rows: torch.ones(3), "does not depend on its input"),
    "constant concatenated": (lambda rows: torch.cat([rows, torch.ones(1, 4)]), "only layers' outputs"),
    "weights of a layer": (lambda rows: functional.linear(torch.ones(3, 4), rows), "given weight by a layer"),
}


@pytest.mark.parametrize(("function", "message"), REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("rows", [1, 3])
def test_what_no_layer_computes(function: Any, message: str, rows: int) -> None:
    with pytest.raises(InputError, match=message):
        from_torch(Called(function), torch.zeros(rows, 4))


def test_a_module_that_counts_its_calls_is_refused_and_left_as_it_was() -> None:
    module = Counting()
    with pytest.raises(InputError, match=r"changes its buffers \(calls\)"):
        from_torch(module, torch.zeros(3, 4))
    assert module.calls.item() == 0
