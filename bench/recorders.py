#!/usr/bin/env python3
"""Which module records each table, and which code it measures; `tools/bench TABLE` runs it.

Only the standard library is used, as `tools/update_tables` reads this, too.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["RECORDERS", "Recorder", "main"]

ROOT = Path(__file__).resolve().parents[1]

_ENGINE = ("sparsenn/engine", "sparsenn/layers", "sparsenn/network.py")
_CPU = ("sparsenn/backends/cpu", "sparsenn/runtime/jit.py")
_CUDA = "sparsenn/backends/cuda"


@dataclass(frozen=True)
class Recorder:
    """A recorder of a table.

    Parameters
    ----------
    module : module of this folder whose `TABLES` has the table.
    measures : paths of the code that decides the figures; a result is old once one of them has changed.
    needs : what it needs besides this machine, in words.
    """

    module: str
    measures: tuple[str, ...]
    needs: str = ""


_GPU, _EITHER = "a GPU", "a GPU, or --device cpu"
_DATA = "data: MNIST"
_OFFICIAL = f"{_EITHER}; data: the official 1024 × 120 network"

RECORDERS = {
    "choice": Recorder("table_choice", (*_ENGINE, _CUDA, *_CPU), _EITHER),
    "conv2d": Recorder("table_ladders", ("sparsenn/studies/conv2d", f"{_CUDA}/conv"), _EITHER),
    "cpu-convolutions": Recorder("table_cpu", (*_ENGINE, *_CPU), "torchvision; OpenVINO is compared if installed"),
    "cpu-rows": Recorder("table_cpu", (*_ENGINE, *_CPU), "ONNX Runtime; OpenVINO is compared if installed"),
    "devices": Recorder("table_devices", ("sparsenn/distributed", *_ENGINE, _CUDA), "GPUs of one host"),
    "few-rows": Recorder("table_gpu", (*_ENGINE, f"{_CUDA}/sparse"), _GPU),
    "gemm": Recorder("table_ladders", ("sparsenn/studies/gemm", f"{_CUDA}/dense"), _EITHER),
    "golden": Recorder("table_cpu", (*_ENGINE, *_CPU, "sparsenn/backends/foreign.py"), "PyTorch"),
    "gpu-convolutions": Recorder("table_gpu", (*_ENGINE, f"{_CUDA}/conv"), f"{_GPU}, torchvision"),
    "mlp": Recorder("table_ladders", ("sparsenn/studies/mlp", f"{_CUDA}/dense"), _EITHER),
    "models": Recorder("table_cpu", (*_ENGINE, *_CPU), f"{_DATA} and pruned networks"),
    "network": Recorder("table_network", (*_ENGINE, *_CPU), _DATA),
    "session": Recorder("table_session", (*_ENGINE, _CUDA, *_CPU), f"{_EITHER}; {_DATA}"),
    "sparse-layers": Recorder("table_session", (*_ENGINE, f"{_CUDA}/sparse"), f"{_GPU}; {_DATA}"),
    "sparsify": Recorder("table_sparsify", ("sparsenn/interop/torch", *_ENGINE, *_CPU), "PyTorch"),
    "spmspm-ladder": Recorder("table_ladders", ("sparsenn/studies/spmspm", f"{_CUDA}/sparse"), _OFFICIAL),
    "spmspm-sweep": Recorder("table_ladders", ("sparsenn/studies/spmspm", f"{_CUDA}/sparse"), _OFFICIAL),
    "torchvision": Recorder("table_cpu", (*_ENGINE, *_CPU, "sparsenn/io/importers"), "PyTorch and torchvision"),
    "training": Recorder(
        "table_training",
        ("sparsenn/training", f"{_CUDA}/training", "sparsenn/backends/cpu/training.py"),
        f"{_EITHER}; {_DATA} and abalone",
    ),
}
"""By the name of the table."""


def main(words: Sequence[str]) -> int:
    """List the tables, or run the recorder of one in place of this process; return the exit code."""
    if not words or words[0] in ("-h", "--help"):
        print("usage: tools/bench TABLE [OPTION ...]; tools/bench TABLE --help has the options\n")
        for name, recorder in RECORDERS.items():
            print(f"  {name:16} {recorder.needs}".rstrip())
        return 0
    if words[0] not in RECORDERS:
        print(f"bench: unknown table {words[0]!r}; there are {', '.join(RECORDERS)}", file=sys.stderr)
        return 2
    os.chdir(ROOT)
    os.execv(sys.executable, [sys.executable, "bench/record.py", *words])  # it ends as the recorder does
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
