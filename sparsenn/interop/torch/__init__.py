"""The modules behind `sparsenn.torch`; all but `report` import PyTorch."""

__all__ = []
