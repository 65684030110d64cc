"""DeepSparse, which needs an older NumPy than sparsenn: it computes, and times itself, in an interpreter of its own.

The environment variable `DEEPSPARSE_PYTHON` names that interpreter, such as that of a virtual environment made by
`python3.11 -m venv deepsparse && deepsparse/bin/pip install deepsparse==1.8.0`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Sequence
from pathlib import Path

import numpy as np

__all__ = ["INTERPRETER", "DeepSparse"]

INTERPRETER = os.environ.get("DEEPSPARSE_PYTHON")


class DeepSparse:
    """A network of an ONNX file, compiled for a number of rows in a process that ends with this object.

    Parameters
    ----------
    interpreter : of Python, with DeepSparse.
    file : the network.
    rows : float32, what each call computes.

    Raises
    ------
    RuntimeError
        DeepSparse cannot compile the network.
    """

    def __init__(self, interpreter: str, file: bytes, rows: np.ndarray) -> None:
        self._folder = tempfile.TemporaryDirectory()
        folder = Path(self._folder.name)
        (folder / "network.onnx").write_bytes(file)
        np.save(folder / "rows.npy", rows)
        self._child = subprocess.Popen(
            [interpreter, __file__, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        weakref.finalize(self, _end, self._child, self._folder)
        self.block(0)

    def __call__(self) -> Sequence[np.ndarray]:
        """Return the outputs: (rows, numbers) each."""
        self.block(1)
        with np.load(Path(self._folder.name) / "outputs.npz") as outputs:
            return list(outputs.values())

    def block(self, count: int) -> list[float]:
        """Return the milliseconds of `count` calls in a row, as the process of DeepSparse measured them."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        print(count, file=self._child.stdin, flush=True)
        answer = self._child.stdout.readline()
        if not answer:
            raise RuntimeError("DeepSparse does not compute the network")
        return list(json.loads(answer))


def _end(child: subprocess.Popen[str], folder: tempfile.TemporaryDirectory[str]) -> None:
    child.kill()
    child.communicate()
    folder.cleanup()


def main(folder: Path) -> None:
    """Serve a `DeepSparse`: for each line with a number of calls, print their milliseconds."""
    from deepsparse import compile_model  # type: ignore[import-not-found]

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the library prints is no answer
    rows = np.load(folder / "rows.npy")
    engine = compile_model(str(folder / "network.onnx"), batch_size=len(rows))
    for line in sys.stdin:
        count, milliseconds = int(line), []
        for _ in range(count):
            start = time.perf_counter()
            outputs = engine.run([rows])
            milliseconds.append(1e3 * (time.perf_counter() - start))
        if count == 1:
            np.savez(folder / "outputs.npz", *outputs)
        print(json.dumps(milliseconds), file=answers, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
