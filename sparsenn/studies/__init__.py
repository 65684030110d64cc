"""Studies: what exists to be compared. A folder an operation, with its ladder; and what runs, tunes and models rungs.

Importing this package registers every rung and every ladder. Nothing below it does: whoever asks the registry for all
kernels, or for one that the engine itself does not have, gets it imported; see `sparsenn.plugins`.
"""

from sparsenn.studies import conv2d, conversion, gemm, mlp, spmspm, train
from sparsenn.studies.ladder import add_rung

__all__ = ["add_rung", "conv2d", "conversion", "gemm", "mlp", "spmspm", "train"]
