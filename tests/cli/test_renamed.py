"""Old names of verbs and options: they are taken, and a note tells the new."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from typer.testing import Result

from sparsenn.cli.program import VERBS
from sparsenn.cli.renamed import renewed

Run = Callable[..., Result]


@pytest.mark.parametrize("verb", ["ladder", "roofline", "tune"])
def test_verbs_that_were_moved_run_with_a_note(run: Run, verb: str) -> None:
    done = run(verb, "--help")
    assert done.exit_code == 0
    assert f"sparsenn kernels {verb}" in done.stdout
    assert done.stderr == (
        f"note: sparsenn {verb} is now sparsenn kernels {verb}; the old name is taken until the next release\n"
    )


@pytest.mark.parametrize("words", [["kernels"], ["kernels", "spmspm"], ["kernels", "--compile"]])
def test_kernels_without_a_verb_lists_them(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert renewed(words) == ["kernels", "list", *words[1:]]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: "-".join(verb.words))
def test_what_is_called_by_its_name_stays_as_it_is(verb: object, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*verb.words, "x", "--json", "-"]  # type: ignore[attr-defined]
    assert renewed(words) == words
    assert capsys.readouterr().err == ""
