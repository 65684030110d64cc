"""The named datasets: generated on first use, then cached as one HDF5 file each, with a checksum."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

from sparsenn.datasets.cache import (
    DamagedCacheWarning,
    cache_folder,
    check_disk,
    is_whole,
    record_checksum,
    remove_checksum,
)
from sparsenn.datasets.generate import generate, input_kind
from sparsenn.datasets.mnist import TRAINING_SHAPE, find_training_images
from sparsenn.datasets.names import parse_name
from sparsenn.datasets.truth import begin_record, compute_truth
from sparsenn.errors import FileFormatError
from sparsenn.io.hdf5.dataset import read_dataset, write_dataset
from sparsenn.runtime.memory import check_memory
from sparsenn.runtime.progress import Progress, silent
from sparsenn.runtime.storage import make_cache_folder

GENERATION = 1
"""Part of the files' names: to be raised whenever the same name would come out different."""

DEGREE = 32
"""Inputs of each neuron: radix 2 × Kronecker factor 16."""

INPUT_DENSITY = 0.12
"""Upper estimate for either kind of inputs, for the space needed; both have about 0.10."""


def named_file(name: str, progress: Progress = silent, truth: bool = True) -> Path:
    """Return the cached file of a named dataset, generating it first if it is not there, or not whole any more.

    The inputs are the challenge's own if MNIST is at hand (see `find_training_images`), procedural digits otherwise.
    The file's name says which, so that the two never mix; a cached one with the challenge's inputs comes first.

    Parameters
    ----------
    name : str
        One of `NAMES`.
    progress : callable, optional
        Called with the progress of what is generated.
    truth : bool, default True
        Whether to compute the true categories too, where that is affordable and they are not in the file. An
        interrupted computation resumes.

    Returns
    -------
    pathlib.Path
        The file.

    Raises
    ------
    UsageError
        The name is unknown, or SPARSENN_MNIST names a folder without MNIST.
    ResourceError
        Disk space or memory do not suffice, or the cache folder cannot be written.
    FileFormatError
        The MNIST file is damaged, or another set of images; or the cached file is damaged, and MNIST is gone.

    Warns
    -----
    DamagedCacheWarning
        The cached file does not have the checksum recorded of it: it is made again.
    """
    neurons, layers = parse_name(name)
    folder = cache_folder() / "datasets"
    kind = "mnist" if _cached(folder, name, "mnist").exists() else input_kind(neurons)
    path = _cached(folder, name, kind)
    pending = path.with_name(f"{path.name}.truth.json")
    whole = path.exists() and is_whole(path)
    if not whole:
        if path.exists():
            _report_damage(path, kind)
        _check_room(name, folder)
        make_cache_folder("datasets")
        made = generate(neurons, layers, inputs=kind, truth=False, progress=progress)
        begin_record(f"datasets/{pending.name}")
        write_dataset(made, path)
        record_checksum(path)
    if truth and pending.exists():
        _add_truth(path, pending, progress)
    return path


def _add_truth(path: Path, pending: Path, progress: Progress) -> None:
    """Compute the truth of a dataset that was written without; what is done so far is in the pending record."""
    dataset = read_dataset(path)
    truth, verdict = compute_truth(dataset.network, dataset.inputs, progress, f"datasets/{pending.name}")
    remove_checksum(path)  # a file without one counts as whole, should the process end before the next is recorded
    write_dataset(replace(dataset, truth=truth, provenance=dataset.provenance | {"truth": verdict}), path)
    record_checksum(path)
    pending.unlink()


def cached_files(name: str) -> tuple[Path, ...]:
    """Return the file of a named dataset, with either kind of inputs, whether it is there or not."""
    return tuple(_cached(cache_folder() / "datasets", name, kind) for kind in ("mnist", "digits"))


def _cached(folder: Path, name: str, kind: str) -> Path:
    return folder / f"{name}-{kind}-v{GENERATION}.h5"


def _report_damage(path: Path, kind: str) -> None:
    damage = "is damaged: its checksum is not the one recorded of it"
    if kind == "mnist" and find_training_images() is None:
        raise FileFormatError(path, f"{damage}, and MNIST is not available to make it again; remove it to use digits")
    warnings.warn(f"{path} {damage}; it is made again", DamagedCacheWarning, stacklevel=3)


def _check_room(name: str, folder: Path) -> None:
    neurons, layers = parse_name(name)
    images = TRAINING_SHAPE[0]
    network = layers * (neurons * DEGREE * 2 + (neurons + 1) * 8)  # 16-bit indices, 64-bit offsets
    inputs = int(images * neurons * INPUT_DENSITY) * 2 + images * 8
    check_disk(folder, network + inputs, name, "free some space, or set SPARSENN_CACHE to a folder on another disk")
    check_memory(network + inputs, name, "close other programs, or take a smaller dataset")
