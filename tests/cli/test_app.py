"""Help, version and the speed of both."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from typing import get_type_hints

import pytest
from children import processor_time
from typer.models import OptionInfo
from typer.testing import Result

import sparsenn
from sparsenn.cli.program import GROUPS, VERBS, Verb, verb_of

Run = Callable[..., Result]

COMMANDS = [" ".join(verb.words) for verb in VERBS]
HEAVY = {"numpy", "numba", "scipy", "h5py", "pyarrow", "matplotlib"}


@pytest.mark.parametrize("words", [[], ["spmspm"]])
def test_kernels_without_a_verb_lists_them(run: Run, words: list[str]) -> None:
    assert verb_of(["kernels", *words]) == verb_of(["kernels", "list"])
    listed = run("kernels", *words)
    assert listed.exit_code == 0
    assert listed.stdout == run("kernels", "list", *words).stdout


def test_help_lists_every_verb(run: Run) -> None:
    done = run("--help")
    assert done.exit_code == 0
    assert all(f" {verb.words[0]} " in done.stdout for verb in VERBS)


@pytest.mark.parametrize("group", GROUPS)
def test_help_of_a_group_lists_its_verbs(run: Run, group: str) -> None:
    done = run(group, "--help")
    assert done.exit_code == 0
    assert all(f" {verb.words[1]} " in done.stdout for verb in VERBS if verb.words[0] == group)


@pytest.mark.parametrize("verb", COMMANDS)
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_every_verb_has_help_with_examples(run: Run, verb: str, flag: str) -> None:
    done = run(*verb.split(), flag)
    assert done.exit_code == 0
    assert f"  sparsenn {verb}" in done.stdout.partition("Examples:")[2]


@pytest.mark.parametrize("verb", COMMANDS)
def test_examples_are_whole_lines_on_a_narrow_terminal(run: Run, verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    examples, *_ = re.split("Arguments:|Options:", run(*verb.split(), "--help").stdout.partition("Examples:")[2])
    assert all(line.startswith("    sparsenn ") for line in examples.splitlines() if line.strip())


@pytest.mark.parametrize("verb", VERBS, ids=COMMANDS)
def test_an_option_called_as_its_value_names_itself(verb: Verb) -> None:
    """Typer before 0.28 takes the value's name for the option's where they differ in case only."""
    function = getattr(import_module(f"sparsenn.cli.{verb.module}"), verb.function)
    for name, hint in get_type_hints(function, include_extras=True).items():
        for option in getattr(hint, "__metadata__", ()):
            if isinstance(option, OptionInfo) and (option.metavar or "").lower() == name:
                assert f"--{name}" in (option.default, *(option.param_decls or ()))  # the first is kept as default


def test_version(run: Run) -> None:
    done = run("--version")
    assert (done.exit_code, done.stdout) == (0, f"sparsenn {sparsenn.__version__}\n")


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
    done = run(*arguments)
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("error: ")
    assert told in done.stderr
    assert "\x1b" not in done.stderr


def test_without_a_verb_the_usage_is_told(run: Run) -> None:
    done = run()
    assert done.exit_code == 2
    assert "Usage: " in done.output


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


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from sparsenn.cli import main; sys.argv = ['sparsenn', 'infer', '--help']; main();"
        "print({name.partition('.')[0] for name in sys.modules}, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    loaded = eval(done.stderr)
    assert "typer" in loaded
    assert not HEAVY & loaded


@pytest.mark.parametrize("arguments", [("--help",), ("infer", "--help")])
def test_help_comes_nearly_as_soon_as_that_of_any_program_with_typer(arguments: tuple[str, ...]) -> None:
    smallest = "import typer; app = typer.Typer(); app.command()(lambda: None); app(['--help'])"

    def seconds(*given: str) -> float:
        with processor_time() as spent:
            subprocess.run([sys.executable, *given], capture_output=True, check=True, timeout=240)
        return spent()

    both = [(seconds("-m", "sparsenn", *arguments), seconds("-c", smallest)) for _ in range(4)]
    ours, typers = (min(times) for times in zip(*both, strict=True))
    assert ours < 3.5 * typers
