"""Sparse layers of few rows, bound by reading the weights.

`few_rows` takes all layers in one launch, `few_rows_float16` a launch per layer.
"""

__all__ = ()
