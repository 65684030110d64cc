"""Rows on their way to the device and back: copies through pinned memory, and checks of rows that are there."""

__all__ = ()
