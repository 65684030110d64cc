"""Networks from other programs, a folder for each: ONNX (also written), PyTorch, Keras and scikit-learn.

All importers compose a `sparsenn.io.importers.signal.Signal`, operator by operator; a signal makes the layers.
"""

__all__ = []
