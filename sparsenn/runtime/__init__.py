"""What all of the package runs on: numba, memory, threads, spans, interrupts, progress, and stored files."""

__all__ = ()
