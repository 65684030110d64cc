"""Networks inside other libraries: PyTorch's modules and scikit-learn's estimators."""

__all__ = []
