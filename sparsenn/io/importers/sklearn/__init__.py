"""Networks from perceptrons and pipelines of scikit-learn."""

__all__ = []
