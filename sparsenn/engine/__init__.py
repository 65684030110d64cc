"""The engine: plan how to run a network, prepare it, and run it as often as you like.

Modules in the order of a first call: `session` takes a model and `options`; `compiled_network` has its network after
all passes, and kernels that may run it; `inputs` reads rows, for which `choosing` and `measuring` find the `steps` of a
`plan`; `weight_cache` and `bound_steps` make an `executable` of it; and `batches` runs rows through it, to outputs or a
`result`. `plan_cache` stores all that is made for rows. Later `calls` on arrays like earlier ones skip the rest.
"""

from sparsenn.engine.calls import BoundCall
from sparsenn.engine.options import Options
from sparsenn.engine.plan import Plan, plan_rows
from sparsenn.engine.result import LayerStatistics, Result
from sparsenn.engine.session import Session, plan
from sparsenn.runtime.timing import Seconds

__all__ = [
    "BoundCall",
    "LayerStatistics",
    "Options",
    "Plan",
    "Result",
    "Seconds",
    "Session",
    "plan",
    "plan_rows",
]
