"""The engine: plan how to run a network, prepare it, and run it as often as you like."""

from sparsenn.engine.calls import BoundCall
from sparsenn.engine.options import Options
from sparsenn.engine.plan import Plan, plan_rows
from sparsenn.engine.result import LayerStatistics, Result, Seconds, Timer
from sparsenn.engine.session import Session, plan

__all__ = [
    "BoundCall",
    "LayerStatistics",
    "Options",
    "Plan",
    "Result",
    "Seconds",
    "Session",
    "Timer",
    "plan",
    "plan_rows",
]
