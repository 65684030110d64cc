"""Every kernel compiles, with every set of its defines, without a warning or a spill. No GPU is needed."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cuda_builds import PROGRAMS, declare_all, source_file
from nvrtc import compile_log, faults

import sparsenn
from sparsenn.backends.cuda.runtime.loader import COMPILE_OPTIONS, define_options, source_text

pytest.importorskip("cuda.bindings.nvrtc", reason="needs the NVRTC packages of sparsenn[test]", exc_type=ImportError)

PACKAGE = Path(sparsenn.__file__).parent
FILES = sorted(PACKAGE.rglob("*.cu"))
SOURCES = [path.relative_to(PACKAGE).as_posix().removeprefix("backends/cuda/kernels/") for path in FILES]
ARCHITECTURES = ("sm_80", "sm_90")
STAGES = "sparse/"
"""Kernels that together carry out one idea, on one layout."""


declare_all()


def builds_of(source, arch):
    """The defines of each build for an architecture, and what it is compiled for; none where another one is meant."""
    for program in PROGRAMS:
        if program.source == source and (program.architecture is None or arch == ARCHITECTURES[-1]):
            for defines in program.builds():
                yield defines, program.architecture or arch


BUILT = [(source, arch) for source in SOURCES for arch in ARCHITECTURES if any(builds_of(source, arch))]
"""Without the architectures that lack a kernel's instructions."""


@pytest.mark.parametrize(("source", "arch"), BUILT)
def test_kernel_compiles_cleanly(source, arch):
    builds, text = list(builds_of(source, arch)), source_text(source)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        begun = [
            pool.submit(compile_log, text, source, target, [*COMPILE_OPTIONS, *define_options(defines)])
            for defines, target in builds
        ]
        for (defines, _), compilation in zip(builds, begun, strict=True):
            done, log = compilation.result()
            assert done, f"{defines}: {log}"
            assert faults(log) == [], defines


def test_every_source_is_declared_and_every_declared_program_has_one():
    """By `loader.program`, or `cuda_builds.declare`."""
    assert {program.source for program in PROGRAMS} == set(SOURCES) == {source for source, _ in BUILT}


def missing_from_heading(source):
    """The topics that the comment at a source's beginning lacks."""
    text = source_file(source).read_text(encoding="utf-8")
    heading = text[: text.index("#include")]
    if len(heading.splitlines()) < 5 or not all(line.startswith("//") or not line for line in heading.splitlines()):
        return ["a comment of five lines"]
    rung, topics = Path(source).name[:2].isdigit(), ["Needs"]
    if not source.startswith(STAGES):
        topics += ["Idea", "Layout", *(["Before"] if rung else [])]
    return [topic for topic in topics if f"// {topic}" not in heading]


def test_kernels_begin_with_their_story():
    found = {source: missing_from_heading(source) for source in SOURCES}
    assert {source: topics for source, topics in found.items() if topics} == {}
