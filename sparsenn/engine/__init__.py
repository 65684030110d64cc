"""The engine: plan how to run a network, prepare it, and run it as often as you like."""

from sparsenn.engine.api import plan, plan_rows
from sparsenn.engine.bound_call import BoundCall
from sparsenn.engine.options import Options
from sparsenn.engine.plan import Plan
from sparsenn.engine.result import LayerStatistics, Result, Seconds
from sparsenn.engine.session import Session
from sparsenn.engine.timer import ReadingTimer, Timer

__all__ = [
    "BoundCall",
    "LayerStatistics",
    "Options",
    "Plan",
    "ReadingTimer",
    "Result",
    "Seconds",
    "Session",
    "Timer",
    "plan",
    "plan_rows",
]
