"""The text formats of the Sparse DNN Graph Challenge: single files, and a folder of them."""

__all__ = []
