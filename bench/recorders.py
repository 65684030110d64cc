#!/usr/bin/env python3
"""Which script records each table, and which code it measures; `tools/bench TABLE` runs it.

Only the standard library is used, as `tools/update_tables` reads this, too.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["TABLES", "Recorder", "command_for", "main"]

ROOT = Path(__file__).resolve().parents[1]

_ENGINE = ("sparsenn/engine", "sparsenn/layers", "sparsenn/network.py")
_CPU = ("sparsenn/backends/cpu", "sparsenn/runtime/jit.py")
_CUDA = "sparsenn/backends/cuda"


@dataclass(frozen=True)
class Recorder:
    """What records a table.

    Parameters
    ----------
    script : path of the script, or of the file of pytest-benchmark's, in the repository.
    measures : paths of the code that decides the figures; a result is old once one of them has changed.
    arguments : what has to be given to the script, in capitals, and what may be, in brackets.
    needs : what it needs besides the machine, in words.
    always : words that the script is given for this table, before others.
    """

    script: str
    measures: tuple[str, ...]
    arguments: str = ""
    needs: str = ""
    always: tuple[str, ...] = ()


_GPU, _EITHER = "a GPU", "a GPU, or --device cpu"

_ROW_FILES = Recorder(
    "bench/record_row_files.py", ("sparsenn/distributed", *_ENGINE), "[--devices cpu]", "GPUs, or --devices cpu"
)
"""Of two tables."""

TABLES = {
    "choice": Recorder("bench/record_choice.py", (*_ENGINE, _CUDA, *_CPU), "[--device cpu]", _EITHER),
    "cold-start": Recorder(
        "bench/record_cold_start.py", ("sparsenn/cli", *_ENGINE, *_CPU), "FILE.h5", "the 1024 × 120 problem"
    ),
    "conv-streaming": Recorder("bench/record_conv_streaming.py", (*_ENGINE, f"{_CUDA}/conv"), needs=_GPU),
    "conv2d": Recorder("bench/record_conv2d.py", ("sparsenn/studies/conv2d", f"{_CUDA}/conv"), "[--plot FILE]", _GPU),
    "conversion": Recorder("bench/bench_conversion.py", ("sparsenn/formats", *_CPU)),
    "cpu-convolutions": Recorder(
        "bench/record_cpu_convolutions.py", (*_ENGINE, *_CPU), "[--only NAME …]", "torchvision, and OpenVINO if at hand"
    ),
    "cpu-rows": Recorder("bench/record_cpu_rows.py", (*_ENGINE, *_CPU), "[--only NAME …]", "OpenVINO if at hand"),
    "dask": Recorder("bench/record_dask.py", ("sparsenn/distributed", *_ENGINE, *_CPU), "[--device cuda]"),
    "devices": Recorder("bench/record_devices.py", ("sparsenn/distributed", *_ENGINE, _CUDA), needs="GPUs of one host"),
    "end-to-end": Recorder("bench/record_end_to_end.py", (*_ENGINE, _CUDA, "sparsenn/io"), "FILE.h5 …", _EITHER),
    "few-rows": Recorder("bench/record_few_rows.py", (*_ENGINE, f"{_CUDA}/sparse"), "[--rows N …]", _GPU),
    "gemm": Recorder("bench/record_gemm.py", ("sparsenn/studies/gemm", f"{_CUDA}/dense"), "[--plot FILE]", _GPU),
    "general": Recorder("bench/record_general.py", (*_ENGINE, f"{_CUDA}/sparse"), needs=_GPU),
    "golden": Recorder("bench/record_golden.py", (*_ENGINE, *_CPU, "sparsenn/backends/foreign.py"), needs="PyTorch"),
    "gpu-convolutions": Recorder(
        "bench/record_gpu_convolutions.py", (*_ENGINE, f"{_CUDA}/conv"), "[--only NAME …]", f"{_GPU}, torchvision"
    ),
    "input-sizes": Recorder("bench/record_input_sizes.py", ("sparsenn/datasets",), "MNIST", "MNIST's folder"),
    "lenet": Recorder(
        "bench/record_lenet.py", (*_ENGINE, f"{_CUDA}/conv"), "MODEL IMAGES LABELS [--device cpu]", "MNIST's files"
    ),
    "mlp": Recorder("bench/record_mlp.py", ("sparsenn/studies/mlp", f"{_CUDA}/dense"), needs=_GPU),
    "models": Recorder("bench/record_models.py", (*_ENGINE, *_CPU), "DATA [--device cuda]", "pruned networks"),
    "network": Recorder(
        "bench/bench_network.py", (*_ENGINE, *_CPU), needs="MNIST, and the official 1024 × 120 network"
    ),
    "profiles": Recorder("bench/record_profiles.py", (f"{_CUDA}/sparse", f"{_CUDA}/kernels"), "[--only KEY …]", _GPU),
    "readers": Recorder("bench/bench_readers.py", ("sparsenn/io",), needs="the official 1024 × 120 network"),
    "resident": Recorder(
        "bench/record_resident.py", (f"{_CUDA}/sparse", f"{_CUDA}/kernels"), "IMAGES [--official FOLDER]", _GPU
    ),
    "row-files": _ROW_FILES,
    "scaling": _ROW_FILES,
    "session": Recorder(
        "bench/record_session.py", (*_ENGINE, _CUDA, *_CPU), "[--device cpu] [--data FOLDER] [--images FOLDER]", _EITHER
    ),
    "sparse-layers": Recorder(
        "bench/record_session.py",
        (*_ENGINE, f"{_CUDA}/sparse"),
        "[--images FOLDER]",
        _GPU,
        ("--table", "sparse-layers"),
    ),
    "sparsify": Recorder("bench/record_sparsify.py", ("sparsenn/torch", *_ENGINE, *_CPU), "[--device cuda]", "PyTorch"),
    "spmspm": Recorder("bench/bench_spmspm.py", _CPU, needs="MNIST, and the official 1024 × 120 network"),
    "spmspm-ladder": Recorder(
        "bench/record_ladder.py", ("sparsenn/studies/spmspm", f"{_CUDA}/sparse"), "FOLDER [--plot FILE]", _GPU
    ),
    "spmspm-sweep": Recorder(
        "bench/record_ladder.py", ("sparsenn/studies/spmspm", f"{_CUDA}/sparse"), "FOLDER", _GPU, ("--sweep",)
    ),
    "streaming": Recorder("bench/record_streaming.py", (*_ENGINE, f"{_CUDA}/sparse"), needs=_GPU),
    "torchvision": Recorder(
        "bench/record_torchvision.py", (*_ENGINE, *_CPU, "sparsenn/io"), "[--only NAME …]", "torchvision"
    ),
    "training": Recorder(
        "bench/record_training.py",
        ("sparsenn/training", f"{_CUDA}/training", "sparsenn/backends/cpu/training.py"),
        "[--device cuda] [--abalone FILE] [--mnist FOLDER]",
        _EITHER,
    ),
}
"""By the name of the table."""


def command_for(table: str, arguments: Sequence[str] = ()) -> list[str]:
    """Return what records a table, after the name of Python's interpreter: words of a command line."""
    script = TABLES[table].script
    if Path(script).name.startswith("bench_"):
        return ["-m", "pytest", script, "--record", *arguments]
    return [script, *TABLES[table].always, *arguments]


def main(words: Sequence[str]) -> int:
    """List the tables, or run what records one, in place of this process; return the exit code."""
    if not words or words[0] in ("-h", "--help"):
        print("usage: tools/bench TABLE [ARGUMENT ...]\n\nTABLE, and what is run for it:")
        for name, recorder in TABLES.items():
            told = " ".join(["python", *command_for(name), recorder.arguments])
            print(f"  {name:15} {told.strip()}" + (f"  ({recorder.needs})" if recorder.needs else ""))
        return 0
    if words[0] not in TABLES:
        print(f"bench: unknown table {words[0]!r}; there are {', '.join(TABLES)}", file=sys.stderr)
        return 2
    os.chdir(ROOT)
    os.execv(sys.executable, [sys.executable, *command_for(words[0], words[1:])])  # it ends as the script does
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
