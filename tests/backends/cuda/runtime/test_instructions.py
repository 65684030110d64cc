"""Instructions that CUDA C++ has no word for have one home, `kernels/ptx`, and one wrapper each."""

import re
from collections import Counter
from pathlib import Path

import sparsenn
from sparsenn.backends import cuda

KERNELS = Path(cuda.__file__).parent / "kernels"
STUDIES = Path(sparsenn.__file__).parent / "studies"
HOME = KERNELS / "ptx"
WRAPPERS = sorted(HOME.glob("*.cuh"))
ELSEWHERE = sorted(
    path
    for folder in (KERNELS, STUDIES)
    for path in folder.rglob("*")
    if path.suffix in {".cu", ".cuh"} and path.parent != HOME
)

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_ASSEMBLY = re.compile(r"\b(?:__)?asm(?:__)?\b")
_INSTRUCTIONS = re.compile(r'\b(?:__)?asm(?:__)?\b[\s\w]*\(((?:[\s\\]*(?:"[^"]*"|#?\w+))+)')


def has_assembly(text):
    return _ASSEMBLY.search(_COMMENT.sub("", text)) is not None


def instructions(text):
    """What each piece of inline assembly consists of, but for those that only keep something from the compiler."""
    found = ("".join(re.findall(r'[^\s"\\]+', each)) for each in _INSTRUCTIONS.findall(_COMMENT.sub("", text)))
    return [each for each in found if each]


def test_kernels_have_no_assembly_of_their_own():
    assert [path for path in ELSEWHERE if has_assembly(path.read_text(encoding="utf-8"))] == []


def test_headers_of_wrappers_have_some_and_no_kernel():
    texts = {path: path.read_text(encoding="utf-8") for path in WRAPPERS}
    assert [path for path, text in texts.items() if not instructions(text) or "__global__" in text] == []


def test_an_instruction_has_one_wrapper():
    counts = Counter(each for path in WRAPPERS for each in instructions(path.read_text(encoding="utf-8")))
    assert [each for each, count in counts.items() if count > 1] == []
    assert len(counts) > 40
