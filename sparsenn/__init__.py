"""sparsenn: exact and fast inference for sparse deep neural networks."""

__version__ = "0.1.0"
