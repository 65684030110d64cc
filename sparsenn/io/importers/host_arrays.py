"""Arrays as other programs hold them: NumPy's, SciPy's sparse ones, PyTorch's tensors of any layout, lists."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import coo_array, issparse

from sparsenn.errors import InputError
from sparsenn.formats import Array
from sparsenn.formats.arrays import real_numbers
from sparsenn.printable import kind_of


def host_array(name: str, value: Any) -> Array:
    """Return real numbers as a NumPy array in host memory, those of two bytes as float32.

    name : what messages call the array, such as `weight of fc1`.
    """
    matrix = host_matrix(name, value)
    dense: Array = matrix.toarray() if issparse(matrix) else matrix
    return dense


def host_matrix(name: str, value: Any) -> Any:
    """Return the same as `host_array`, but a sparse matrix as one of SciPy's."""
    try:
        found = _of_torch(value) if hasattr(value, "detach") and hasattr(value, "layout") else value
    except (RuntimeError, NotImplementedError, TypeError) as error:
        reason = str(error).partition("\n")[0]
        raise InputError(f"the {name} is {kind_of(value)} that cannot be brought to the host ({reason})") from error
    if not issparse(found):
        found = real_numbers(found, f"{name} holds", InputError)
    if found.dtype.kind not in "fiub":
        raise InputError(f"the {name} holds {found.dtype}; real numbers are needed")
    return found.astype(np.float32) if found.dtype == np.float16 else found


def _of_torch(tensor: Any) -> Any:
    """Return a tensor of PyTorch as an array of NumPy, or a matrix of SciPy where it is sparse."""
    values = tensor.detach()
    if getattr(values, "is_quantized", False):
        values = values.dequantize()
    values = values.cpu()
    if str(values.layout) == "torch.strided":
        return (values.float() if _is_short(values) else values).resolve_conj().resolve_neg().numpy()
    entries = values.to_sparse_coo().coalesce()
    numbers = entries.values()
    places = entries.indices().numpy()
    return coo_array(((numbers.float() if _is_short(numbers) else numbers).numpy(), tuple(places)), tuple(values.shape))


def _is_short(values: Any) -> bool:
    """Whether a tensor holds floating-point numbers of fewer than four bytes, not all of which NumPy knows."""
    return bool(values.is_floating_point() and values.element_size() < 4)
