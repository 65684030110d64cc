"""Dense and sparse arrays in files: NumPy's, IDX, safetensors and Matrix Market."""

__all__ = []
