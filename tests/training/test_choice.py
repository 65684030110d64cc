"""Which trainer computes: by name, or the first of those that `auto` may take and that takes the problem."""

from __future__ import annotations

import pytest
from training_problems import problem

from sparsenn.backends import Backend, TrainingKernel, TrainingProblem, automatic, backend_for
from sparsenn.backends.machine import Machine
from sparsenn.errors import UsageError
from sparsenn.training import choice
from sparsenn.training.choice import Choice, choose


def kernel(name: str, refusal: str | None, precision: str = "float32") -> TrainingKernel:
    """A trainer that is its own name; one that refuses a problem says so when it is launched, too."""

    def launch(given: TrainingProblem, device_index: int) -> str:
        if refusal is not None:
            raise UsageError(refusal)
        return f"{name} on {device_index}"

    def why_not(machine: Machine, given: TrainingProblem) -> str | None:
        assert machine == backend_for("cpu").machine
        assert given.batch_size == 3
        return refusal

    return TrainingKernel(
        name=name, device="cpu", summary="", launch=launch, auto=True, why_not=why_not, precision=precision
    )


PICKY, POOR, GOOD = kernel("picky", "too deep"), kernel("poor", "too wide"), kernel("good", None)


def start(*candidates: TrainingKernel, backend: Backend | None = None) -> tuple[str, object]:
    entry, trainer = Choice(backend or backend_for("cpu"), candidates, "float32").start(problem(batch_size=3))
    return entry.name, trainer


def test_the_first_that_takes_the_problem_is_started() -> None:
    assert start(PICKY, GOOD, kernel("better", None)) == ("good", "good on 0")
    assert start(GOOD, PICKY) == ("good", "good on 0")


def test_where_none_takes_it_the_last_says_why() -> None:
    with pytest.raises(UsageError, match="too wide"):
        start(PICKY, POOR)
    with pytest.raises(UsageError, match="too deep"):
        start(PICKY)


@pytest.mark.parametrize(("device", "name"), [("cpu", "numpy"), ("reference", "reference")])
def test_auto_takes_those_that_are_marked_for_it(device: str, name: str) -> None:
    found = choose(device, "auto", "float32")
    assert found.candidates == automatic("train", device)
    assert [entry.name for entry in found.candidates] == [name]
    assert found.precision == ("float64" if device == "reference" else "float32")


def test_auto_takes_the_precision_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    rough = kernel("rough", None, "float16")
    monkeypatch.setattr(choice, "automatic", lambda operation, device: (GOOD, rough, PICKY))
    assert choose("cpu", "auto", "float32").candidates == (GOOD, PICKY)
    found = choose("cpu", "auto", "float16")
    assert (found.candidates, found.precision) == ((rough,), "float16")
    with pytest.raises(UsageError, match=r"cpu does not train in tf32 \(it has: float16, float32\)"):
        choose("cpu", "auto", "tf32")


def test_a_name_brings_its_own_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "kernels", lambda operation, device: (GOOD, kernel("rough", None, "float16")))
    for asked in ("float32", "float16"):
        assert choose("cpu", "rough", asked).precision == "float16"
    with pytest.raises(UsageError, match=r"rough .* float16"):
        choose("cpu", "rough", "tf32")
    with pytest.raises(UsageError, match="unknown cpu kernel for train 'better'"):
        choose("cpu", "better", "float32")
