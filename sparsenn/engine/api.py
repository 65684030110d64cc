"""What callers of the engine run networks with: inputs may be CSR, SciPy's or NumPy's."""

from __future__ import annotations

from typing import Any

from sparsenn.engine.execute import execute as run_plan
from sparsenn.engine.inputs import Inputs, as_csr
from sparsenn.engine.plan import Plan, plan
from sparsenn.engine.result import Result
from sparsenn.errors import UsageError
from sparsenn.network import Network
from sparsenn.progress import Progress, silent

__all__ = ["execute", "infer"]


def execute(plan: Plan, inputs: Inputs, progress: Progress = silent) -> Result:
    """Run a plan. One run at a time: its backend keeps buffers from launch to launch, and from run to run.

    A batch for which memory does not suffice is done again with fewer rows, as are those after it with no more; the
    result's notes say so.

    Parameters
    ----------
    plan : made by `sparsenn.plan` for inputs of this shape.
    inputs : as `sparsenn.plan` takes them.
    progress : told of every layer done; steps are layers times batches, as planned.

    Raises
    ------
    UsageError
        The plan is no `Plan`.
    ShapeError
        The inputs are not those the plan was made for.
    InputError
        The inputs are no matrix that `sparsenn.plan` takes; or there are layers of images, and an input is NaN or
        infinite.
    NumericError
        Inputs, outputs or hidden values of layers in precision `fp16` went beyond what it can hold, or a kernel that
        adds in it may have left it.
    OutOfMemoryError, MemoryError
        Memory does not suffice for a single row, on the device or on the host.
    """
    if not isinstance(plan, Plan):
        raise UsageError(f"the plan is a {type(plan).__name__}; what is executed is what sparsenn.plan returns")
    return run_plan(plan, as_csr(plan.network, inputs), progress)


def infer(network: Network, inputs: Inputs, *, progress: Progress = silent, **options: Any) -> Result:
    """Plan and execute in one call.

    Parameters
    ----------
    network : the layers.
    inputs : as `sparsenn.plan` takes them.
    progress : told of every layer done.
    options : the options of `sparsenn.plan`.

    Raises
    ------
    SparseNNError
        As `sparsenn.plan` and `execute` do.
    """
    rows = as_csr(network, inputs)
    return run_plan(plan(network, rows, **options), rows, progress)
