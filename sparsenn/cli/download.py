"""`sparsenn challenge download`: fetch the challenge's published files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparsenn.cli.console import console, reporting
from sparsenn.cli.options import ProgressFlag
from sparsenn.printable import printable


def download(
    what: Annotated[
        str, typer.Argument(metavar="NAME|NEURONS", help="A name such as radixnet-1024x120, or a width such as 1024.")
    ],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where the files go; created if absent.")],
    layers: Annotated[
        list[int] | None,
        typer.Option(
            metavar="L", help="Layers to download the categories for, repeatable; by default 120, 480 and 1920."
        ),
    ] = None,
    url: Annotated[
        str | None, typer.Option("--url", metavar="URL", help="Address of the files, if not the official one.")
    ] = None,
    progress: ProgressFlag = None,
) -> None:
    """Download the official inputs, network and categories into a folder that run reads.

    Files that are already there and match their recorded checksums stay.
    An interrupted download resumes where it stopped.

    \b
    Examples:
      sparsenn challenge download radixnet-1024x120 challenge/
      sparsenn challenge download 4096 challenge/ --layers 120 --layers 480
      sparsenn challenge run challenge/ --neurons 1024 --layers 120
    """
    from sparsenn.datasets.download import BASE_URL
    from sparsenn.datasets.download import download as fetch_all

    wanted = int(what) if what.isascii() and what.isdigit() and len(what) < 10 else what
    with reporting(progress) as report:
        files = fetch_all(wanted, folder, layers=layers, base_url=url or BASE_URL, progress=report)
    for file in files:
        console().print(printable(str(file)), soft_wrap=True)
