"""`resident`: layers whose rows stay in shared memory from layer to layer."""

__all__ = ()
