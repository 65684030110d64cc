"""Old values of options: they are accepted, and a warning at the caller's line tells the new."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import sparsenn
from sparsenn.engine.options import Options
from sparsenn.errors import UsageError
from sparsenn.formats import from_dense
from sparsenn.layers import Linear
from sparsenn.network import Network
from sparsenn.renamed import VALUES, renewed
from sparsenn.training.choice import choose

NETWORK = Network((Linear(np.eye(3)),))
TOLD = "precision fp16 is now float16; the old name is accepted until the next release"


def planned(precision: str) -> Any:
    return sparsenn.plan(NETWORK, from_dense(np.eye(3)), machine="h200", precision=precision)


def test_half_precision_is_planned_by_its_old_name_with_a_warning_at_the_caller() -> None:
    with pytest.warns(DeprecationWarning, match=TOLD) as told:
        found = planned("fp16")
    assert [warning.filename for warning in told] == [__file__]
    assert found.options == Options(machine="h200", precision="float16")
    assert str(found) == str(planned("float16"))


def test_training_knows_the_old_name() -> None:
    message = "cpu does not train in float16"
    with pytest.warns(DeprecationWarning, match=TOLD), pytest.raises(UsageError, match=message):
        choose("cpu", "auto", "fp16")


@pytest.mark.parametrize("kind", ["plan", "session"])
def test_what_was_pickled_with_the_old_name_is_loaded(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = Options(device="reference") if kind == "session" else Options(machine="h200", precision="float16")
    made = sparsenn.Session(NETWORK, device="reference") if kind == "session" else planned("float16")
    options = replace(options)
    object.__setattr__(options, "precision", "fp16")  # as an earlier version pickled it
    monkeypatch.setattr(type(made), "options", options)
    pickled = pickle.dumps(made)
    monkeypatch.undo()
    if kind == "session":
        message = "dense layers are not multiplied in float16 on reference"
        with pytest.warns(DeprecationWarning, match=TOLD), pytest.raises(UsageError, match=message):
            pickle.loads(pickled)
    else:
        with pytest.warns(DeprecationWarning, match=TOLD):
            assert pickle.loads(pickled).options.precision == "float16"


def test_names_of_now_and_unknown_ones_stay() -> None:
    for option, values in VALUES.items():
        assert [renewed(option, new) for new in values.values()] == [*values.values()]
    assert renewed("precision", "half") == "half"
    assert renewed("kernel", "fp16") == "fp16"
