"""Options by name: what type checkers know of them, and what is refused."""

from __future__ import annotations

import inspect
import typing

import pytest

import sparsenn
from sparsenn.engine import Options
from sparsenn.engine.options import NamedOptions, StreamOptions
from sparsenn.errors import UsageError

OPTIONS = inspect.signature(Options).parameters
SIZES_IN_BYTES = ("memory_limit", "weight_memory")


def test_named_options_are_the_options() -> None:
    assert set(typing.get_type_hints(StreamOptions)) == set(OPTIONS) - {"memory_limit"}
    known, named = typing.get_type_hints(Options), typing.get_type_hints(NamedOptions)
    texts = {name: known[name] | str for name in SIZES_IN_BYTES}
    assert named == {**known, **texts}


def test_an_option_that_is_not_there_is_refused_by_name() -> None:
    network = sparsenn.Network.from_scipy([[[1.0]]])
    with pytest.raises(UsageError, match=r"'kernels'.* batch_size"):
        sparsenn.infer(network, [[1.0]], kernels="auto")  # type: ignore[call-arg]
