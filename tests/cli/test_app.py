"""Help, version and the speed of both."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from command_line import Run

import sparsenn
from sparsenn.cli.program import VERBS

COMMANDS = [" ".join(verb.words) for verb in VERBS]


def test_help_lists_every_verb(run: Run) -> None:
    done = run("--help")
    assert all(f" {verb.words[0]} " in done.stdout for verb in VERBS)


@pytest.mark.parametrize("verb", COMMANDS)
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_every_verb_has_help_with_examples(run: Run, verb: str, flag: str) -> None:
    done = run(*verb.split(), flag)
    assert f"  sparsenn {verb}" in done.stdout.partition("Examples:")[2]


def test_version(run: Run) -> None:
    assert run("--version").stdout == f"sparsenn {sparsenn.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("conjure",), "no such command 'conjure'; see "),
        (("infer",), "missing argument 'DATASET'; see "),
        (("infer", "a", "b"), "unexpected extra argument"),
        (("infer", "a", "--conjure"), "no such option: --conjure"),
        (("infer", "a", "--layers", "x"), "invalid value for '--layers'"),
        (("infer", "a", "--layers"), "--layers"),
        (("challenge", "verify", "a"), "missing argument 'TRUTH'"),
        (("kernels", "ladder"), "missing argument 'OPERATION'"),
        (("cache", "x\x1b[2J"), "no such command"),
    ],
)
def test_bad_usage_is_a_line_and_exit_code_2(run: Run, arguments: tuple[str, ...], told: str) -> None:
    done = run(*arguments, code=2)
    assert (done.stdout, done.stderr.count("\n"), "\x1b" in done.stderr) == ("", 1, False)
    assert done.stderr.startswith("error: ")
    assert told in done.stderr


def test_without_a_verb_the_usage_is_told(run: Run) -> None:
    assert "Usage: " in run(code=2).output


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_verbs(shell: str) -> None:
    asked = {
        "bash": {"COMP_WORDS": "sparsenn kernels l", "COMP_CWORD": "2"},
        "zsh": {"_TYPER_COMPLETE_ARGS": "sparsenn kernels l"},
        "fish": {"_TYPER_COMPLETE_ARGS": "sparsenn kernels l", "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
    }
    environment = {**os.environ, "_SPARSENN_COMPLETE": f"complete_{shell}", **asked[shell]}
    code = "import sys; from sparsenn.cli import run; sys.argv = ['sparsenn']; run()"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stderr) == (0, "")
    assert "ladder" in done.stdout
    assert "list" in done.stdout
    assert "roofline" not in done.stdout
