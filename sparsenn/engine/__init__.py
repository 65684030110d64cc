"""The engine: plan how a network is to be run, then run it."""

from sparsenn.engine.api import execute, infer
from sparsenn.engine.compilation import compile_kernels
from sparsenn.engine.merging import Merged, merge_equal_outputs
from sparsenn.engine.plan import Plan, plan
from sparsenn.engine.predictor import Predictor
from sparsenn.engine.result import LayerStatistics, Result, Seconds
from sparsenn.engine.rows import RowsResult, run_rows

__all__ = [
    "LayerStatistics",
    "Merged",
    "Plan",
    "Predictor",
    "Result",
    "RowsResult",
    "Seconds",
    "compile_kernels",
    "execute",
    "infer",
    "merge_equal_outputs",
    "plan",
    "run_rows",
]
