"""Sparse layers on the GPU: the rungs of spmspm, conversions, and the resident engine."""

from sparsenn.backends.cuda.sparse.stack import Stack, prepared_bytes, upload

__all__ = ["Stack", "prepared_bytes", "upload"]
