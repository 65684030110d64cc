"""Sparse matrix formats: frozen containers, their invariants, and the conversions between them; tables."""

from sparsenn.formats.arrays import INDEX16_LIMIT, INDEX32_LIMIT, Array, index_dtype
from sparsenn.formats.compressed import CSC, CSR
from sparsenn.formats.conversion import (
    coo_to_csc,
    coo_to_csr,
    csc_to_csr,
    csr_to_coo,
    csr_to_csc,
    from_dense,
)
from sparsenn.formats.coo import COO
from sparsenn.formats.encoding import Column, TableEncoding, class_codes, class_names
from sparsenn.formats.equality import equal_groups, equal_rows
from sparsenn.formats.input_layout import InputLayout
from sparsenn.formats.scaling import Scaling
from sparsenn.formats.table import Table, Texts, Unread

__all__ = [
    "COO",
    "CSC",
    "CSR",
    "INDEX16_LIMIT",
    "INDEX32_LIMIT",
    "Array",
    "Column",
    "InputLayout",
    "Scaling",
    "Table",
    "TableEncoding",
    "Texts",
    "Unread",
    "class_codes",
    "class_names",
    "coo_to_csc",
    "coo_to_csr",
    "csc_to_csr",
    "csr_to_coo",
    "csr_to_csc",
    "equal_groups",
    "equal_rows",
    "from_dense",
    "index_dtype",
]
