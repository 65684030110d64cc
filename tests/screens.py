"""What a terminal of some width shows, and the cells of tables there."""

from __future__ import annotations

from io import StringIO

from rich.console import Console, RenderableType

__all__ = ["cells", "shown"]


def shown(renderable: RenderableType, width: int = 200) -> str:
    stream = StringIO()
    Console(file=stream, width=width, markup=False).print(renderable)
    return stream.getvalue()


def cells(text: str) -> list[list[str]]:
    """The rows of a table, without its heading."""
    return [[cell.strip() for cell in line.strip("\0│").split("│")] for line in text.splitlines() if "│" in line]
