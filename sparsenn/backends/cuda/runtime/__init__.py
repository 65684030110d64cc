"""CuPy's runtime: the device, compiling and launching kernels, streams and graphs, memory, and records of launches."""

__all__ = ()
