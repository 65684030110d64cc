#!/usr/bin/env python3
"""Compare the categories of a result with the true ones: two text files, one 1-based index a line.

    tools/verify_categories.py RESULT TRUTH

Exit code 0: the two name the same categories. 1: they do not. 2: a file cannot be read or is not such a file, or the
verdict cannot be written.
Needs nothing but Python's standard library. Files are plain, or gzip where the name ends in .gz; a byte order mark
and CRLF are accepted, anything else that is not one positive integer on each line is not.
"""

from __future__ import annotations

import argparse
import gzip
import os
import sys
import zlib
from pathlib import Path

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
INDEX_LIMIT = (1 << 31) - 1
LONGEST_LINE = 64
NAMED = 5


class CategoriesError(Exception):
    """A file that does not hold categories; the message says where and why."""


def read_categories(path: Path) -> set[int]:
    categories: set[int] = set()
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(LONGEST_LINE), b""), start=1):
                text = (line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line).strip()
                shown, place = text.decode("ascii", "backslashreplace"), f"{path}:{number}"
                if not (text.isdigit() and len(text) < LONGEST_LINE - 2):
                    raise CategoriesError(f"{place}: {shown!r} is not a category; each line holds one positive integer")
                if not 1 <= int(text) <= INDEX_LIMIT:
                    raise CategoriesError(f"{place}: category {shown} is outside 1..{INDEX_LIMIT}")
                if not line.endswith(b"\n"):
                    raise CategoriesError(f"{place}: the last line has no line end: truncated?")
                if int(text) in categories:
                    raise CategoriesError(f"{place}: category {int(text)} occurs twice")
                categories.add(int(text))
    except (OSError, EOFError, zlib.error) as error:
        raise CategoriesError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    return categories


def named(categories: set[int]) -> str:
    if not categories:
        return "none"
    first = ", ".join(map(str, sorted(categories)[:NAMED]))
    return f"{len(categories)} ({first}{', ...' if len(categories) > NAMED else ''})"


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Compare the categories of a result with the true ones.",
        epilog="Exit code 0: equal. 1: different. 2: a file cannot be read or does not hold categories.",
    )
    parser.add_argument("result", type=Path, help="the categories that were found: one 1-based index a line")
    parser.add_argument("truth", type=Path, help="the true categories, in the same form")
    arguments = parser.parse_args()
    try:
        found, true = read_categories(arguments.result), read_categories(arguments.truth)
        verdict = f"PASSED: all {len(true)} true categories, and no others"
        if found != true:
            verdict = (
                f"FAILED: {len(found & true)} of {len(true)} true categories match; "
                f"{named(true - found)} missing, {named(found - true)} unexpected"
            )
        print(verdict, flush=True)
        return int(found != true)
    except CategoriesError as error:
        print(f"error: {error}", file=sys.stderr)
    except OSError as error:
        print(f"error: the verdict cannot be written: {error.strerror}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or it fails once more at the end
    return 2


if __name__ == "__main__":
    sys.exit(main())
