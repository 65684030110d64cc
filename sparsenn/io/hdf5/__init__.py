"""HDF5 files of this package: datasets, results, models and checkpoints."""

__all__ = []
