"""Help, version and the speed of both."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import get_type_hints

import pytest
from children import processor_time
from typer.models import OptionInfo
from typer.testing import Result

import sparsenn
from sparsenn.cli.app import app

Run = Callable[..., Result]

VERBS = (
    *("infer", "benchmark", "train", "generate", "convert", "verify", "info", "kernels", "ladder", "roofline", "tune"),
    "download",
)
HEAVY = {"numpy", "numba", "scipy", "h5py", "pyarrow", "matplotlib"}


def test_help_lists_every_verb(run: Run) -> None:
    done = run("--help")
    assert done.exit_code == 0
    assert all(f" {verb} " in done.stdout for verb in VERBS)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_every_verb_has_help_with_examples(run: Run, verb: str, flag: str) -> None:
    done = run(verb, flag)
    assert done.exit_code == 0
    assert f"  sparsenn {verb} " in done.stdout.partition("Examples:")[2]


@pytest.mark.parametrize("verb", VERBS)
def test_examples_are_whole_lines_on_a_narrow_terminal(run: Run, verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    examples = run(verb, "--help").stdout.partition("Examples:")[2].partition("╭")[0]
    assert all(line.startswith("   sparsenn ") for line in examples.splitlines() if line.strip())


@pytest.mark.parametrize("verb", VERBS)
def test_an_option_called_as_its_value_names_itself(verb: str) -> None:
    """Typer before 0.28 takes the value's name for the option's where they differ in case only."""
    (command,) = (found for found in app.registered_commands if (found.name or found.callback.__name__) == verb)
    for name, hint in get_type_hints(command.callback, include_extras=True).items():
        for option in getattr(hint, "__metadata__", ()):
            if isinstance(option, OptionInfo) and (option.metavar or "").lower() == name:
                assert f"--{name}" in (option.default, *(option.param_decls or ()))  # the first is kept as default


def test_version(run: Run) -> None:
    done = run("--version")
    assert (done.exit_code, done.stdout) == (0, f"sparsenn {sparsenn.__version__}\n")


@pytest.mark.parametrize(
    "arguments", [(), ("conjure",), ("infer",), ("infer", "a", "b"), ("infer", "a", "--conjure"), ("verify", "a")]
)
def test_bad_usage_is_exit_code_2(run: Run, arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert done.exit_code == 2
    assert "Usage: " in done.output


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
