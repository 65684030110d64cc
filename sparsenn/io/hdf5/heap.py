"""Texts of variable length in HDF5 files.

They are in the file's global heaps, which libhdf5 may search forever if the file is damaged; here they are read from
the bytes, once and in order. A heap, as the format's specification (III.E) has it::

    bytes 0-3           "GCOL"
    4                   version: 1
    8-15                size of the heap, this header included
    then objects        index (2 bytes; 0 ends the heap), references (2), reserved (4), size (8), data up to a multiple
                        of 8 bytes
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from sparsenn.io.bounded import open_plain, reading

_SIGNATURE = b"GCOL\x01"

_BLOCK = 1 << 24  # bytes that are searched at a time


def heap_texts(path: str | os.PathLike[str], most: int) -> Iterator[bytes]:
    """Yield what the global heaps of a file hold, in the order of the file; nothing longer than `most` bytes."""
    with open_plain(path) as file, reading(path):
        total = os.fstat(file.fileno()).st_size
        start = 0
        while start < total:
            file.seek(start)
            block = file.read(_BLOCK)
            place = block.find(_SIGNATURE)
            if place < 0:
                start += max(1, len(block) - len(_SIGNATURE) + 1)
                continue
            start += place
            file.seek(start)
            size = int.from_bytes(file.read(16)[8:], "little")
            if 16 <= size <= total - start:
                yield from _objects(file.read(min(size - 16, 2 * most)), most)
                start += size
            else:
                start += len(_SIGNATURE)


def _objects(heap: bytes, most: int) -> Iterator[bytes]:
    place = 0
    while place + 16 <= len(heap):
        index, size = (
            int.from_bytes(heap[first:last], "little") for first, last in ((place, place + 2), (place + 8, place + 16))
        )
        if index == 0 or size > min(most, len(heap) - place - 16):
            return
        yield heap[place + 16 : place + 16 + size]
        place += 16 + -(-size // 8) * 8
