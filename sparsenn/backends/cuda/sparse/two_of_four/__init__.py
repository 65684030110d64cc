"""`two_of_four`: layers on tensor cores that skip two zeros of four."""

__all__ = ()
