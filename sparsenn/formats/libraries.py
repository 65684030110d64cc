"""Arrays of other libraries: PyTorch's tensors, SciPy's and CuPy's matrices, and anything with DLPack."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from sparsenn.errors import InputError
from sparsenn.formats.arrays import Array, convert_scipy
from sparsenn.formats.compressed import CSR
from sparsenn.printable import kind_of

EXACT_INTEGER = 1 << 24  # the largest integer up to which all are numbers of float32
_SPARSE = {"scipy": "scipy.sparse", "cupyx": "cupyx.scipy.sparse"}
"""Libraries of sparse matrices, and the modules that stack these."""


def readable_tensor(inputs: Any) -> Any:
    """Return a PyTorch tensor whose memory holds its numbers, sign included, as others read it; all else as it is."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(inputs, torch.Tensor):
        return inputs
    # PyTorch exports the memory of tensors with the negative bit, and of subclasses that store their numbers elsewhere
    if type(inputs).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        raise InputError(f"the inputs are {kind_of(inputs)}, whose memory cannot be read; give a plain torch.Tensor")
    if torch.autograd.forward_ad.unpack_dual(inputs).tangent is not None:
        raise InputError("the inputs carry a forward-mode derivative, which no session computes; give their values")
    if inputs.layout is not torch.strided:
        raise InputError("the inputs are no dense tensor of PyTorch's; give its .to_dense(), or SciPy's matrix")
    return inputs.float() if inputs.dtype == torch.bfloat16 else inputs.resolve_neg()


def to_input_type(source: Any, outputs: CSR | Array) -> Any:
    """Return outputs in the type of the inputs as the caller gave them: SciPy's or PyTorch's, for example."""
    if isinstance(outputs, CSR):
        return outputs.to_scipy() if hasattr(source, "tocsr") and isinstance(outputs.indptr, np.ndarray) else outputs
    if isinstance(source, type(outputs)):
        return outputs
    library = sys.modules.get(type(source).__module__.partition(".")[0])
    from_dlpack = getattr(library, "from_dlpack", None)
    return outputs if from_dlpack is None or library is np else from_dlpack(outputs)


def largest(matrix: Array) -> float:
    """Return the largest magnitude; 0 of no numbers."""
    return max(-float(matrix.min()), float(matrix.max())) if matrix.size else 0.0


def _fits_float32(matrix: Array) -> bool:
    """Return whether numbers are float32, or integers that are numbers of float32, too."""
    return largest(matrix) <= EXACT_INTEGER if matrix.dtype.kind in "iu" else matrix.dtype == np.float32


def side_by_side(matrices: list[Any]) -> Any:
    """Return matrices, dense or sparse, side by side as one; raises InputError where no library does that."""
    if len(matrices) == 1:
        return matrices[0]
    roots = [type(matrix).__module__.partition(".")[0] for matrix in matrices]
    sparse = next((_SPARSE[root] for root in roots if root in _SPARSE), None)
    try:
        if sparse is not None:
            library = sys.modules[sparse]
            if sparse == "scipy.sparse":  # whose C++ reads wherever a damaged matrix says
                matrices = [convert_scipy(each, "tocsr") if hasattr(each, "tocsr") else each for each in matrices]
            return library.hstack([library.csr_matrix(matrix) for matrix in matrices], format="csr")
        libraries = {root: sys.modules[root] for root in roots}
        if len(libraries) > 1 or not hasattr(libraries[roots[0]], "concatenate"):
            return np.concatenate([np.from_dlpack(matrix) for matrix in matrices], axis=1)
        if libraries == {"numpy": np} and all(map(_fits_float32, matrices)):  # of which NumPy would make float64
            return np.concatenate(matrices, axis=1, dtype=np.float32, casting="unsafe")
        return libraries[roots[0]].concatenate(matrices, axis=1)
    except (AttributeError, BufferError, RuntimeError, TypeError, ValueError) as error:
        kinds = ", ".join(dict.fromkeys(map(kind_of, matrices)))
        raise InputError(f"{kinds} cannot be put side by side ({error}); give arrays of one library") from error
