"""Damage to files, drawn at random: bits, bytes, numbers, pieces cut out, moved or taken from elsewhere.

Files in gzip, archives in tar and zip, and headers that a length precedes are damaged as they are, or inside, so that
checksums and lengths hold again.
"""

from __future__ import annotations

import gzip
import io
import re
import tarfile
import zipfile
from collections.abc import Callable
from random import Random

__all__ = ["mutated", "shrunk"]

TEXT_SUFFIXES = (".tsv", ".csv", ".mtx", ".json", ".arguments")
NUMBER = re.compile(rb"-?\d+\.?\d*(?:[eE][-+]?\d+)?")
WORDS = (
    *(b"-1", b"0", b"1", b"2", b"7", b"8", b"9", b"255", b"65535", b"65536", b"16777217", b"1000000000"),
    *(b"2147483647", b"2147483648", b"4294967296", b"9223372036854775807", b"18446744073709551616", b"9" * 5000),
    *(b"1e308", b"1e309", b"-1e999", b"1e-400", b"nan", b"-inf", b"", b"0x10", b"1_0", b"+1", b".5", b"5.", b"1e"),
    *(b" 1", b"01", b"-0", b'"1"', b"true", b"null", b"[]", b"{}", b"[" * 3000, b"\xd9\xa1", b"\x1b[2J", b"\r"),
)
"""What a number in a text is replaced by."""

SIZES = (0, 1, 2, 3, 7, 8, 9, 15, 16, 255, 256, 511, 512, 1 << 15, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)
"""What a whole number in binary is replaced by, and these less one, negative, and times 2³²."""


def mutated(random: Random, name: str, data: bytes, others: list[bytes]) -> bytes:
    """Return a file damaged in one to six ways.

    Parameters
    ----------
    random : what decides.
    name : of the file; its suffix says what is inside.
    data : the valid file.
    others : files that pieces are taken from.
    """
    if random.random() < 0.6:
        if name.endswith(".tar.gz"):
            return gzip.compress(_tar(random, gzip.decompress(data), others), 1, mtime=0)
        if name.endswith(".gz"):
            inside = mutated(random, name.removesuffix(".gz"), gzip.decompress(data), others)
            return gzip.compress(inside, 1, mtime=0)
        if name.endswith((".npz", ".keras")):
            return _zip(random, data, others)
        if name.endswith(".safetensors"):
            end = 8 + int.from_bytes(data[:8], "little")
            header = mutated(random, ".json", data[8:end], others)
            return len(header).to_bytes(8, "little") + header + data[end:]
    text = name.endswith(TEXT_SUFFIXES)
    for _ in range(random.choice((1, 1, 1, 2, 3, 6))):
        data = random.choice(_WAYS)(random, data or b"\0", others, text)
    return data


def shrunk(data: bytes, still: Callable[[bytes], bool], tries: int = 300) -> bytes:
    """Return a file with pieces cut out, as small as `tries` attempts make it, of which `still` is true as before."""
    size = len(data) // 2
    while size and tries:
        start = 0
        while start < len(data) and tries:
            shorter = data[:start] + data[start + size :]
            tries -= 1
            if still(shorter):
                data = shorter
            else:
                start += size
        size //= 2
    return data


def _tar(random: Random, data: bytes, others: list[bytes]) -> bytes:
    if random.random() < 0.5:
        return mutated(random, "", data, others)
    target = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(data)) as source, tarfile.open(fileobj=target, mode="w") as archive:
        members = source.getmembers()
        chosen = random.randrange(len(members))
        for number, member in enumerate(members):
            file = source.extractfile(member)
            text = b"" if file is None else file.read()
            text = mutated(random, member.name, text, others) if number == chosen else text
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text))
    return target.getvalue()


def _zip(random: Random, data: bytes, others: list[bytes]) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as source, zipfile.ZipFile(target, "w") as archive:
        members = source.infolist()
        chosen = random.randrange(len(members))
        for number, member in enumerate(members):
            content = source.read(member)
            content = mutated(random, member.filename, content, others) if number == chosen else content
            archive.writestr(member, content)
    return target.getvalue()


# ---- Ways ---------------------------------------------------------------------------------------------------------


def _flip(random: Random, data: bytes, others: list[bytes], text: bool) -> bytes:
    place = random.randrange(len(data))
    return data[:place] + bytes([data[place] ^ 1 << random.randrange(8)]) + data[place + 1 :]


def _byte(random: Random, data: bytes, others: list[bytes], text: bool) -> bytes:
    place = random.randrange(len(data))
    return data[:place] + bytes([random.choice((0, 1, 9, 10, 32, 45, 127, 128, 255))]) + data[place + 1 :]


def _truncate(random: Random, data: bytes, others: list[bytes], text: bool) -> bytes:
    return data[: random.randrange(len(data))]


def _cut(random: Random, data: bytes, others: list[bytes], text: bool) -> bytes:
    place = random.randrange(len(data))
    return data[:place] + data[place + random.randrange(1, 65) :]


def _move(random: Random, data: bytes, others: list[bytes], text: bool) -> bytes:
    start, place, size = random.randrange(len(data)), random.randrange(len(data)), random.randrange(1, 65)
    return data[:place] + data[start : start + size] + data[place:]


def _splice(random: Random, data: bytes, others: list[bytes], text: bool) -> bytes:
    other, place, size = random.choice(others), random.randrange(len(data)), random.randrange(1, 257)
    start = random.randrange(len(other) + 1)
    return data[:place] + other[start : start + size] + data[place + random.choice((0, size)) :]


def _repeat(random: Random, data: bytes, others: list[bytes], text: bool) -> bytes:
    place = random.randrange(len(data))
    piece = bytes([random.choice((0, 10, 48, 57, 255, random.randrange(256)))]) * random.choice((1, 8, 100, 2000))
    return data[:place] + piece + data[place:]


def _append(random: Random, data: bytes, others: list[bytes], text: bool) -> bytes:
    return data + random.choice((bytes(random.randrange(1, 600)), data[:100], b"\n", random.randbytes(5)))


def _number(random: Random, data: bytes, others: list[bytes], text: bool) -> bytes:
    """Replace a number: in words in a text, else of 1 to 8 bytes, in either order."""
    found = list(NUMBER.finditer(data)) if text else []
    if found:
        match = random.choice(found)
        return data[: match.start()] + random.choice(WORDS) + data[match.end() :]
    width = random.choice((1, 2, 4, 8))
    place = random.randrange(len(data))
    place -= place % width if random.random() < 0.7 else 0
    number = random.choice(SIZES) if random.random() < 0.6 else random.getrandbits(random.choice((8, 16, 32, 64)))
    number = random.choice((number, number, number - 1, -number, number << 32)) % (1 << 8 * width)
    return data[:place] + number.to_bytes(width, random.choice(("little", "little", "big"))) + data[place + width :]


_WAYS = (_flip, _byte, _truncate, _cut, _move, _splice, _repeat, _append, _number, _number, _number)
