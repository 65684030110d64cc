"""`sparsenn kernels list`: the ways in which each operation can be computed."""

from __future__ import annotations

from typing import Annotated

import typer

from sparsenn.cli.console import console, reporting
from sparsenn.cli.options import ProgressFlag


def kernels(
    operation: Annotated[
        str | None, typer.Argument(metavar="OPERATION", help="Only the kernels of this operation.")
    ] = None,
    compile_all: Annotated[
        bool,
        typer.Option(
            "--compile",
            help="First compile all CPU kernels; later runs then compile none, except for networks wider than 65,536.",
        ),
    ] = False,
    progress: ProgressFlag = None,
) -> None:
    """List the kernels of every operation, their requirements, and whether auto may choose them.

    Those of spmspm can be named after infer --kernel.

    \b
    Examples:
      sparsenn kernels list
      sparsenn kernels list spmspm
      sparsenn kernels list --compile
    """
    from sparsenn import datasets  # noqa: F401  its functions, and those that it imports, bring examples
    from sparsenn.cli.compilation import compile_kernels
    from sparsenn.report import kernel_table
    from sparsenn.runtime.jit import run_examples
    from sparsenn.studies.ladder import listing
    from sparsenn.studies.measure import meter  # noqa: F401  it brings an example, too

    listed = listing(operation)
    if compile_all:
        with reporting(progress) as report:
            compile_kernels(report)
        run_examples()
    console().print(kernel_table(listed))
