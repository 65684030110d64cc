"""Tables for the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from rich.table import Table
from rich.text import Text

from sparsenn.backends import Kernel
from sparsenn.engine import LayerStatistics
from sparsenn.printable import printable
from sparsenn.report.fitting import FittedTable, numbers, unbroken
from sparsenn.report.quantities import count, duration, percentage

TEXT_WIDTH = 100  # columns at which a long text, such as the plan, is broken


def fact_table(facts: Iterable[tuple[str, str | Text]], text_width: int | None = None) -> Table:
    """Return a table of facts, each beside its heading, without lines; texts are broken at `text_width` columns.

    What is no `Text` of rich's takes one line, and nothing in it is obeyed by a terminal.
    """
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(max_width=text_width)
    for heading, fact in facts:
        table.add_row(Text(heading), fact if isinstance(fact, Text) else Text(printable(fact)))
    return table


def layer_table(statistics: Sequence[LayerStatistics]) -> Table:
    """Return the table by layer: kernel, rows, density, performed edges, time and what the plan had estimated it to be.

    Dashes stand for what is unknown.
    """
    importance = {"active rows": 3, "distinct rows": 2, "density": 4, "non-zeros": 1}
    others = numbers("rows computed", *importance, "performed edges", "time", "estimated")
    table = FittedTable(*numbers("layer"), *unbroken("kernel"), *others, importance=importance, title="by layer")
    for layer in statistics:
        table.add_row(
            str(layer.layer),
            Text(layer.kernel),
            count(layer.rows),
            _known(layer.active_rows),
            _known(layer.distinct_rows),
            "–" if layer.density is None else percentage(layer.density, 1),
            _known(layer.nonzeros),
            count(layer.performed_edges),
            duration(layer.seconds),
            "–" if layer.estimate is None else duration(layer.estimate),
        )
    return table


def _known(number: int | None) -> str:
    return "–" if number is None else count(number)


def kernel_table(kernels: Sequence[Kernel]) -> Table:
    """Return the table of kernels: operation, name, device, whether `auto` may take them, summary and needs.

    A need that most kernels of a device share stands below the table.
    """
    needs = Counter((kernel.device, need) for kernel in kernels for need in kernel.needs)
    total = Counter(kernel.device for kernel in kernels)
    shared = {pair for pair, times in needs.items() if 2 * times > total[pair[0]] > 1}
    notes = [f"Unless a kernel says otherwise, {device} kernels need: {need}." for device, need in sorted(shared)]
    columns = *unbroken("operation", "kernel", "device", "auto"), "summary", "needs"
    table = FittedTable(*columns, importance={"needs": 1}, caption=" ".join(notes) or None)
    for kernel in kernels:
        own = ", ".join(need for need in kernel.needs if (kernel.device, need) not in shared) or "–"
        auto = "yes" if kernel.auto else "–"
        table.add_row(*map(Text, (kernel.operation, kernel.name, kernel.device, auto, kernel.summary, own)))
    return table
