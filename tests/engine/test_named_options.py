"""What functions that take options by name show of them."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable

import pytest

import sparsenn
from sparsenn.engine import Options
from sparsenn.engine.named_options import NamedOptions, names_options
from sparsenn.errors import UsageError

OPTIONS = inspect.signature(Options).parameters
SIZES_IN_BYTES = ("memory_limit", "weight_memory")


def test_named_options_are_the_options() -> None:
    known, named = typing.get_type_hints(Options), typing.get_type_hints(NamedOptions)
    texts = {name: known[name] | str for name in SIZES_IN_BYTES}
    assert named == {**known, **texts}


@pytest.mark.parametrize(
    "made",
    [
        sparsenn.Session,
        sparsenn.infer,
        sparsenn.plan,
        sparsenn.torch.wrap,
        sparsenn.SparseClassifier,
        sparsenn.SparseClassifier.from_sklearn,
        sparsenn.SparseRegressor,
        sparsenn.SparseRegressor.from_sklearn,
    ],
    ids=lambda made: made.__qualname__,
)
def test_each_option_is_named_with_its_default_and_described(made: Callable[..., object]) -> None:
    parameters = inspect.signature(made).parameters
    assert next(iter(parameters)) in ("network", "estimator")
    shown = {name: parameters[name].default for name in parameters if name in OPTIONS}
    assert shown == {name: option.default for name, option in OPTIONS.items()}
    assert list(shown) == list(parameters)[-len(shown) :]
    text = inspect.getdoc(made) or ""
    assert "**options" not in text
    assert all(f"\n{name} : " in text for name in OPTIONS)
    assert "Parameters\n----------\n" in text


@pytest.mark.parametrize(
    ("made", "without"),
    [
        (sparsenn.distributed.infer, set()),
        (sparsenn.Sessions, {"device", "machine"}),
        (sparsenn.stream, {"memory_limit"}),
    ],
    ids=["infer", "Sessions", "stream"],
)
def test_what_shares_rows_names_the_options_that_it_takes(made: Callable[..., object], without: set[str]) -> None:
    parameters, text = inspect.signature(made).parameters, inspect.getdoc(made) or ""
    named = [name for name in OPTIONS if name not in without]
    assert list(parameters)[-len(named) :] == named
    assert "options" not in parameters
    assert "**options" not in text
    assert all(text.count(f"\n{name} : ") == 1 for name in parameters)
    assert not any(f"\n{name} : " in text for name in without - set(parameters))


def test_what_has_no_docstring_gets_its_signature() -> None:
    def run(network: sparsenn.Network, **options: object) -> None: ...

    assert list(inspect.signature(names_options(run)).parameters) == ["network", *OPTIONS]
    assert run.__doc__ is None


def test_an_option_that_is_not_there_is_refused_by_name() -> None:
    network = sparsenn.Network.from_scipy([[[1.0]]])
    with pytest.raises(UsageError, match="there is no option 'kernels'; known: batch_size, check_finite"):
        sparsenn.infer(network, [[1.0]], kernels="auto")  # type: ignore[call-arg]
