"""`sparsenn doctor`: what there is to compute with, and what to do where something is missing or broken.

It has to work where hardly anything else does, and so needs neither NumPy nor the package's reports.
"""

from __future__ import annotations

import json as json_format
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from sparsenn.cli import options
from sparsenn.cli.console import console, reporting
from sparsenn.cli.exits import ExitCode
from sparsenn.cli.files import STDOUT, check_files, write_document
from sparsenn.printable import printable

if TYPE_CHECKING:
    from rich.table import Table

    from sparsenn.cli.diagnosis import Finding


def doctor(json: options.Json = None) -> None:
    """Show versions, processor, memory, GPU, caches and compiled kernels, and what to do if something is wrong.

    Exit code 0: nothing is broken; a GPU may be missing. 1: something is.

    \b
    Examples:
      sparsenn doctor
      sparsenn doctor --json -
    """
    check_files({}, {"--json": json})
    from sparsenn.cli.diagnosis import diagnose

    with reporting(None):
        findings = diagnose()
    healthy = not any(finding.failed for finding in findings)
    if json != STDOUT:
        console().print(_table(findings))
    if json is not None:
        record = {"healthy": healthy, "findings": [asdict(finding) for finding in findings]}
        write_document(json, json_format.dumps(record, indent=2) + "\n")
    if not healthy:
        raise typer.Exit(ExitCode.VERIFICATION_FAILED)


def _table(findings: Iterable[Finding]) -> Table:
    """Return the table of findings by section; what to do stands below what is wrong or missing."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    before = None
    for finding in findings:
        cell = Text(printable(finding.message), style="bold red" if finding.failed else "")
        if finding.remedy is not None:
            cell.append(f"\n→ {printable(finding.remedy)}", style="yellow")
        table.add_row("" if finding.section == before else finding.section, Text(finding.name), cell)
        before = finding.section
    return table
