"""The package onnx, which reads and writes the files' protobufs; it is imported when it is first needed."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from sparsenn.errors import UsageError

__all__ = ["onnx_library"]

_PARTS = "checker", "compose", "defs", "helper", "inliner", "numpy_helper", "version_converter"


def onnx_library() -> Any:
    """Return the package onnx."""
    known = sys.modules.get("onnx")
    if known is not None and all(hasattr(known, part) for part in _PARTS):
        return known
    try:
        for part in _PARTS:
            import_module(f"onnx.{part}")
        return import_module("onnx")
    except ImportError as error:
        raise UsageError(f"ONNX files need the package onnx ({error}); install it: pip install onnx") from error
