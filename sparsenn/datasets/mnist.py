"""The challenge's inputs, made from the MNIST training images.

MNIST is not part of this package; the files are found where the user has put them, under their published names.
"""

from __future__ import annotations

import os
from pathlib import Path

from sparsenn.datasets.cache import cache_folder
from sparsenn.datasets.enlarge import enlarge
from sparsenn.errors import FileFormatError, UsageError
from sparsenn.formats import CSR, Array
from sparsenn.io.arrays.idx import read_idx
from sparsenn.runtime.progress import Progress, silent

TRAINING_SHAPE = (60_000, 28, 28)

OFFICIAL_NONZEROS = {1024: 6_374_505, 4096: 25_019_051, 16384: 98_858_913, 65536: 392_191_985}
"""Non-zeros of the challenge's published inputs, by number of neurons."""

_TRAINING_FILES = ("train-images-idx3-ubyte", "train-images-idx3-ubyte.gz")


def find_training_images(folder: str | os.PathLike[str] | None = None) -> Path | None:
    """Look for the file of training images: in a folder, else in SPARSENN_MNIST, else in the cache's folder mnist.

    Parameters
    ----------
    folder : str or path-like, optional
        Where to look, and nowhere else.

    Returns
    -------
    pathlib.Path or None
        The file; None if no folder was named, by argument or environment, and the cache has none.

    Raises
    ------
    UsageError
        A folder was named and does not hold the file.
    """
    named = os.fspath(folder) if folder is not None else os.environ.get("SPARSENN_MNIST")
    place = Path(named) if named else cache_folder() / "mnist"
    found = next((place / name for name in _TRAINING_FILES if (place / name).is_file()), None)
    if found is None and named:
        source = "" if folder is not None else " (from SPARSENN_MNIST)"
        raise UsageError(f"{place}{source} does not hold MNIST: there is no {_TRAINING_FILES[0]}, plain or .gz")
    return found


def training_images(folder: str | os.PathLike[str] | None = None) -> Array:
    """Read the training images.

    Parameters
    ----------
    folder : str or path-like, optional
        Where they are sought; see `find_training_images`.

    Returns
    -------
    array, shape (60000, 28, 28), uint8
        The images.

    Raises
    ------
    UsageError
        They are not found.
    FileFormatError
        The file is damaged, or holds something else.
    """
    path = find_training_images(folder)
    if path is None:
        raise UsageError(
            f"MNIST is not available: put {_TRAINING_FILES[0]}[.gz] into {cache_folder() / 'mnist'}, "
            "or name its folder in SPARSENN_MNIST"
        )
    images = read_idx(path)
    if images.shape != TRAINING_SHAPE or images.dtype.name != "uint8":
        raise FileFormatError(
            path, f"holds {images.dtype} of shape {images.shape}; the MNIST training images are uint8, {TRAINING_SHAPE}"
        )
    return images


def mnist_inputs(
    neurons: int,
    folder: str | os.PathLike[str] | None = None,
    *,
    limit: int | None = None,
    progress: Progress = silent,
) -> CSR:
    """Make the challenge's inputs: the training images, enlarged to `neurons` pixels and cut to black and white.

    For 1024, 4096, 16384 and 65536 neurons the result equals the published inputs pixel for pixel. All images are
    enlarged as one signal whatever the limit; 65536 neurons take minutes and over 2 GB.

    Parameters
    ----------
    neurons : int
        Pixels of an input: a square, more than 28², at most 256².
    folder : str or path-like, optional
        Folder of the MNIST files; unless given, see `find_training_images`.
    limit : int, optional
        How many inputs to return, from the first; all unless given.
    progress : callable, optional
        Called for the pixel rows enlarged, then of the images collected.

    Returns
    -------
    CSR, shape (60000 or limit, neurons), float32
        Iso-valued 1.

    Raises
    ------
    UsageError
        MNIST is not found, the number of neurons is no such square, or the limit is not in 1..60000.
    FileFormatError
        The file is damaged, or holds something else.
    ResourceError
        Memory does not suffice.
    """
    if limit is not None and not 1 <= limit <= TRAINING_SHAPE[0]:
        raise UsageError(f"a limit of {limit:,} inputs is not in 1..{TRAINING_SHAPE[0]:,}")
    inputs = enlarge(training_images(folder), neurons, progress)
    return inputs if limit is None else inputs.slice_groups(0, limit)
