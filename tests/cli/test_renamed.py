"""Old names of verbs and options: they are taken, and a note tells the new."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from typer.testing import Result

from sparsenn.cli.program import VERBS
from sparsenn.cli.renamed import OPTIONS, renewed

Run = Callable[..., Result]


@pytest.mark.parametrize("verb", ["ladder", "roofline", "tune"])
def test_verbs_that_were_moved_run_with_a_note(run: Run, verb: str) -> None:
    done = run(verb, "--help")
    assert done.exit_code == 0
    assert f"sparsenn kernels {verb}" in done.stdout
    assert done.stderr == (
        f"note: sparsenn {verb} is now sparsenn kernels {verb}; the old name is accepted until the next release\n"
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


@pytest.mark.parametrize(
    ("verb", "old", "new"), [(verb, old, new) for verb, names in OPTIONS.items() for old, new in names.items()]
)
def test_old_options_are_taken_with_a_note(
    run: Run, capsys: pytest.CaptureFixture[str], verb: str, old: str, new: str
) -> None:
    known = run(*verb.split(), "--help").stdout.partition("╭")[2]
    assert f"{new} " in known
    if (verb, old) != ("generate", "--inputs"):
        assert f"{old} " not in known
    assert renewed([*verb.split(), "a", old, "5", f"{old}=5", "--", old]) == [
        *(*verb.split(), "a", new, "5", f"{new}=5", "--", old)
    ]
    told = f"note: {old} is now {new}; the old name is accepted until the next release\n"
    assert capsys.readouterr().err == 2 * told


def test_an_old_option_reaches_its_verb(run: Run, tmp_path: object) -> None:
    path = f"{tmp_path}/made.h5"
    how = ("--neurons", 64, "--kronecker", 4, "--radices", "4,4", "--layers", 2, "--bias", -0.1)
    done = run("generate", path, *how, "--images", 7, "--inputs=digits")
    assert done.exit_code == 0, done.output
    assert "7 × 64" in done.stdout
    assert done.stderr.splitlines() == [
        "note: --images is now --samples; the old name is accepted until the next release",
        "note: --inputs is now --input-kind; the old name is accepted until the next release",
    ]


@pytest.mark.parametrize("given", [["--precision", "fp16"], ["--precision=fp16"]], ids=" ".join)
def test_half_precision_is_taken_by_its_old_name_with_a_note(run: Run, given: list[str]) -> None:
    done = run("info", "datasets/lenet86.h5", "--plan", "--device", "cpu", *given)
    assert done.exit_code == 2
    note, error = done.stderr.splitlines()
    assert note == (
        "note: --precision fp16 is now --precision float16; the old name is accepted until the next release"
    )
    assert error.startswith("error: convolutions are not multiplied in float16 on cpu")


def test_old_values_are_those_of_their_option_alone(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["infer", "fp16", "--kernel", "fp16", "--precision", "tf32", "--", "--precision", "fp16"]
    assert renewed(words) == words
    assert capsys.readouterr().err == ""


def test_sizes_without_names_are_taken_with_a_note(run: Run) -> None:
    done = run("kernels", "ladder", "gemm", "--sizes", "6,5,4", "--device", "cpu", "--runs", 1, "--json", "-")
    assert done.exit_code == 0
    assert "note: --sizes 6,5,4 is now --sizes m=6,k=5,n=4; the old name is accepted" in done.stderr
