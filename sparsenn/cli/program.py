"""The typer application, made of all verbs or of the one that is run."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperGroup

from sparsenn import __version__
from sparsenn.cli.exits import ExitCode, guarded
from sparsenn.printable import printable

_UsageError: Any = typer.BadParameter.__bases__[0]
"""Typer names it differently in different versions."""


HELP_WIDTH = 100  # columns of help on a terminal that has them


class Verb(NamedTuple):
    """A verb of the program.

    words : by which it is called: its own name, or a group's and its name in there.
    module : of this package that holds its function.
    function : its name in the module.
    """

    words: tuple[str, ...]
    module: str
    function: str


GROUPS = {
    "challenge": "The Sparse DNN Graph Challenge: run, generate, download, verify, convert and benchmark its problems.",
    "kernels": "List kernels, compile them, and see what each optimisation buys on this machine.",
    "cache": "Show the caches on disk, or clear them.",
}
"""Verbs that have verbs of their own, and what --help says of them."""

VERBS = (
    Verb(("predict",), "predict", "predict"),
    Verb(("benchmark",), "benchmark", "benchmark"),
    Verb(("tune",), "tune", "tune"),
    Verb(("train",), "train", "train"),
    Verb(("convert",), "convert", "convert"),
    Verb(("info",), "info", "info"),
    Verb(("infer",), "infer", "infer"),
    Verb(("challenge", "run"), "infer", "infer"),
    Verb(("challenge", "generate"), "generate", "generate"),
    Verb(("challenge", "download"), "download", "download"),
    Verb(("challenge", "verify"), "verify", "verify"),
    Verb(("challenge", "convert"), "challenge_convert", "convert"),
    Verb(("challenge", "benchmark"), "challenge_benchmark", "benchmark"),
    Verb(("kernels", "list"), "kernels", "kernels"),
    Verb(("kernels", "ladder"), "ladder", "ladder"),
    Verb(("kernels", "roofline"), "roofline", "roofline"),
    Verb(("cache", "info"), "cache", "info"),
    Verb(("cache", "clear"), "cache", "clear"),
    Verb(("doctor",), "doctor", "doctor"),
)
"""In the order that --help lists them."""


def verb_of(words: Sequence[str]) -> Verb | None:
    """Return the verb that a command line begins with; None where it begins with none."""
    words = _with_verb(list(words))
    return next((verb for verb in VERBS if verb.words == tuple(words[: len(verb.words)])), None)


class _Program(TyperGroup):
    """The application: it reports bad usage in one line, and lists the kernels or caches where no verb is named."""

    def main(self, args: Sequence[str] | None = None, *others: Any, **more: Any) -> Any:
        """Run the program and end with its exit code; not in standalone mode, return it."""
        standalone = more.pop("standalone_mode", True)
        words = _with_verb(sys.argv[1:] if args is None else list(args))
        try:
            code = super().main(words, *others, **{**more, "standalone_mode": False})
        except _UsageError as error:
            code = _report_usage(error)
        except typer.Abort:
            code = ExitCode.INTERRUPTED
        code = code if isinstance(code, int) else 0
        if not standalone:
            return code
        sys.exit(code)


def _with_verb(words: list[str]) -> list[str]:
    """Return a command line with a verb of `kernels` or `cache` where it names none: `kernels list`, `cache info`."""
    if words == ["cache"] or (words[:1] == ["cache"] and words[1].startswith("--json")):
        return ["cache", "info", *words[1:]]
    verbs = {verb.words[1] for verb in VERBS if verb.words[0] == "kernels"}
    if words[:1] != ["kernels"] or (words[1:2] and words[1] in {*verbs, "-h", "--help"}):
        return words
    return ["kernels", "list", *words[1:]]


def _report_usage(error: Any) -> int:
    """Say on stderr what is wrong with a command line, in a line; without any words, how the program is used."""
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return int(ExitCode.BAD_INPUT)
    message = " ".join(error.format_message().split()).rstrip(".")
    path = error.ctx.command_path if error.ctx is not None else "sparsenn"
    line = f"error: {message[:1].lower()}{message[1:]}; see {path} --help"
    print(printable(line), file=sys.stderr, flush=True)
    return int(ExitCode.BAD_INPUT)


def program(verbs: Iterable[Verb]) -> typer.Typer:
    """Return the application with these verbs, and with `--version`.

    Typer makes the parameters of every verb that an application has, also of those that are not run.
    """
    made = _application(name="sparsenn", cls=_Program)
    groups: dict[str, typer.Typer] = {}
    for verb in verbs:
        run = getattr(import_module(f"sparsenn.cli.{verb.module}"), verb.function)
        owner = made
        if len(verb.words) > 1:
            name = verb.words[0]
            if name not in groups:
                groups[name] = _application(help=GROUPS[name])
                made.add_typer(groups[name], name=name)
            owner = groups[name]
        owner.command(verb.words[-1])(guarded(run))
    made.callback()(_program)
    return made


def _application(**options: Any) -> typer.Typer:
    return typer.Typer(
        add_completion="cls" in options,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": HELP_WIDTH},
        **options,
    )


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"sparsenn {__version__}")
        raise typer.Exit


def _program(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Exact and fast inference for sparse deep neural networks.

    \b
    Examples:
      sparsenn predict model.onnx rows.csv --output predictions.csv
      sparsenn benchmark model.onnx          compare with ONNX Runtime, PyTorch and SciPy
      sparsenn infer radixnet-1024x120       run and verify the challenge's smallest problem
      sparsenn doctor                        show what there is to compute with
      sparsenn predict --help                show all options of a verb
    """
