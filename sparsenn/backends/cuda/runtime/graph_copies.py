"""Copies in a graph whose source or target changes from launch to launch; CuPy has no functions for them."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p
from functools import cache
from typing import Any

from sparsenn.backends.cuda.runtime.driver import driver
from sparsenn.backends.cuda.runtime.streams import Graph
from sparsenn.errors import DeviceError

__all__ = ["GraphCopy", "copies_of"]

MEMCPY_NODE = 1  # CU_GRAPH_NODE_TYPE_MEMCPY


def _operand(prefix: str) -> tuple[tuple[str, Any], ...]:
    kinds = (
        ("x", c_size_t),
        ("y", c_size_t),
        ("z", c_size_t),
        ("level", c_size_t),
        ("type", c_uint),
        ("host", c_void_p),
    )
    return (
        *((f"{prefix}_{name}", kind) for name, kind in kinds),
        (f"{prefix}_device", c_uint64),
        *((f"{prefix}_{name}", c_void_p) for name in ("array", "reserved")),
        *((f"{prefix}_{name}", c_size_t) for name in ("pitch", "height")),
    )


class _Memcpy3D(ctypes.Structure):
    _fields_ = (
        *_operand("source"),
        *_operand("target"),
        ("width", c_size_t),
        ("height", c_size_t),
        ("depth", c_size_t),
    )


@cache
def _driver() -> Any:
    found = driver()
    found.cuGraphGetNodes.argtypes = c_void_p, c_void_p, c_void_p
    found.cuGraphNodeGetType.argtypes = c_void_p, c_void_p
    found.cuGraphMemcpyNodeGetParams.argtypes = c_void_p, c_void_p
    found.cuGraphExecMemcpyNodeSetParams.argtypes = c_void_p, c_void_p, c_void_p, c_void_p
    return found


class GraphCopy:
    """A copy in a graph, between arrays on the device."""

    def __init__(self, graph: Graph, node: int, sizes: _Memcpy3D) -> None:
        self._graph, self._sizes = graph, sizes
        context = c_void_p()
        _check(_driver().cuCtxGetCurrent(byref(context)))
        self._set = _driver().cuGraphExecMemcpyNodeSetParams
        self._arguments = graph.executable, node, ctypes.addressof(sizes), context

    def read_from(self, source: int) -> bool:
        """Set the address that launches from now on read; return whether CUDA takes it: not memory of another kind."""
        self._sizes.source_device = source
        return not self._set(*self._arguments)

    def write_to(self, target: int) -> bool:
        """Set the address that launches from now on write; return whether CUDA takes it: not memory of another kind."""
        self._sizes.target_device = target
        return not self._set(*self._arguments)


def copies_of(graph: Graph) -> dict[tuple[int, int], GraphCopy]:
    """Return the copies in a graph by source and target addresses; DeviceError if the driver cannot list them."""
    library, count = _driver(), c_size_t()
    _check(library.cuGraphGetNodes(graph.graph, None, byref(count)))
    nodes = (c_void_p * count.value)()
    _check(library.cuGraphGetNodes(graph.graph, nodes, byref(count)))
    copies: dict[tuple[int, int], GraphCopy] = {}
    for node in map(int, nodes):
        kind, sizes = c_int(), _Memcpy3D()
        _check(library.cuGraphNodeGetType(node, byref(kind)))
        if kind.value == MEMCPY_NODE:
            _check(library.cuGraphMemcpyNodeGetParams(node, byref(sizes)))
            copies[sizes.source_device, sizes.target_device] = GraphCopy(graph, node, sizes)
    return copies


def _check(status: int) -> None:
    if status:
        raise DeviceError(f"the copies of a CUDA graph cannot be read: the driver reports error {status}")
