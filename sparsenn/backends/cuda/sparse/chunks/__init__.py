"""`chunks`, in three precisions: layers of any width, whose weights come chunk by chunk."""

__all__ = ()
