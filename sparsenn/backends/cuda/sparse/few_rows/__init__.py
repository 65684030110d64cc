"""Sparse layers of few rows: all layers in one launch, bound by reading the weights; see `sparse/few_rows.cu`."""

__all__ = ()
