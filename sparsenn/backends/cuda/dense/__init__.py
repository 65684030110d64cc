"""Stacks of dense layers on the GPU: the rungs of mlp."""

from sparsenn.backends.cuda.dense.stack import DenseStack, upload_dense

__all__ = ["DenseStack", "upload_dense"]
