"""One way in: a dataset from a folder, a file or a name."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from sparsenn.datasets.named import named_file
from sparsenn.datasets.names import LAYER_COUNTS, NAMES, parse_name
from sparsenn.errors import InputError, UsageError, unknown_name
from sparsenn.formats.arrays import real_number
from sparsenn.io.challenge.folder import read_official
from sparsenn.io.challenge.layout import CHALLENGE_BIAS
from sparsenn.io.dataset import Dataset, check_limits
from sparsenn.io.hdf5.dataset import read_dataset
from sparsenn.layers import Conv2d, FullyConnected
from sparsenn.network import Network
from sparsenn.runtime.progress import Progress, ProgressOption, shown_progress
from sparsenn.runtime.storage import check_path

HDF5_SUFFIXES = (".h5", ".hdf5")


@np.errstate(all="ignore")
def load(
    source: str | os.PathLike[str],
    *,
    neurons: int | None = None,
    layers: int | None = None,
    bias: float | None = None,
    limit_inputs: int | None = None,
    truth: bool = True,
    progress: ProgressOption = None,
) -> Dataset:
    """Read, or generate on first use, a dataset.

    Parameters
    ----------
    source : str or path-like
        A folder in the official layout, an HDF5 file of this package, or one of `NAMES`. A text that is a name means
        the name, even if there is such a folder; write ``./name`` for that.
    neurons : int, optional
        Which width to take from a folder that holds several; elsewhere it must be the dataset's own.
    layers : int, optional
        How many layers to take, from the first. The truth goes with them only where that of the shorter network is
        known.
    bias : float, optional
        One bias for all layers instead of the dataset's own. If it differs, the truth is dropped.
    limit_inputs : int, optional
        How many samples to take, from the first, and the truth about them.
    truth : bool, default True
        Whether to compute the true categories of a named dataset that is generated. A file's own are always read.
    progress : callable or bool, optional
        As `sparsenn.Session.run` takes it.

    Returns
    -------
    Dataset
        The network, its inputs, and the truth where it is known.

    Raises
    ------
    UsageError
        The name is unknown, or an option does not fit the dataset.
    InputError
        A file is missing or does not hold what it should.
    ResourceError
        Memory, disk space or permissions do not suffice.
    """
    check_path(source, "the dataset")
    check_limits(layers, limit_inputs)
    bias = None if bias is None else real_number(bias, "the bias", InputError)
    official = source not in NAMES and _is_folder(source)
    with shown_progress(progress) as report:
        if source in NAMES:
            path, layers = _named(str(source), neurons, layers, truth, report)
            dataset = read_dataset(path, layers, limit_inputs, report)
        elif official:
            dataset = read_official(source, neurons, layers, bias, limit_inputs, report)
        else:
            dataset = read_dataset(_existing(source), layers, limit_inputs, report)
    if neurons not in (None, dataset.network.inputs):
        raise UsageError(f"{dataset.name} has {dataset.network.inputs} neurons, not {neurons}; leave the option out")
    dataset = _with_limits_noted(dataset, layers, limit_inputs)
    if bias is None or _is_own_bias(dataset.network, bias, official):
        return dataset
    return _with_other_bias(dataset, bias)


def _named(
    name: str, neurons: int | None, layers: int | None, truth: bool, progress: Progress
) -> tuple[Path, int | None]:
    """Return the cached file of a named dataset, and how many of its layers to read.

    A prefix that has a name of its own is taken as that, with its truth.
    """
    width, depth = parse_name(name)
    if neurons not in (None, width):
        raise UsageError(f"{name} has {width} neurons, not {neurons}; leave the option out or take another name")
    if layers is not None and layers > depth:
        raise UsageError(f"{name} has {depth} layers, not {layers}")
    if layers in LAYER_COUNTS:
        name, layers = f"radixnet-{width}x{layers}", None
    return named_file(name, progress, truth), layers


def _is_folder(source: str | os.PathLike[str]) -> bool:
    try:
        return Path(source).is_dir()
    except OSError as error:  # no permission to look, or a name too long to be one
        raise InputError(f"{os.fspath(source)}: {error.strerror}; check the path") from error


def _existing(source: str | os.PathLike[str]) -> Path:
    path = Path(source)
    if path.exists() and path.suffix.lower() not in HDF5_SUFFIXES:
        raise UsageError(
            f"{path} is neither a folder in the official layout nor an HDF5 file ({', '.join(HDF5_SUFFIXES)})"
        )
    if path.exists():
        return path
    if isinstance(source, str) and path.suffix.lower() not in HDF5_SUFFIXES and path.name == source:
        raise unknown_name("dataset, file or folder", source, NAMES)
    raise InputError(f"{path}: no such file or folder")


def _with_limits_noted(dataset: Dataset, layers: int | None, limit_inputs: int | None) -> Dataset:
    limits = [f"the first {count:,} {what}" for count, what in ((layers, "layers"), (limit_inputs, "inputs")) if count]
    if not limits:
        return dataset
    provenance = dataset.provenance | {"part": ", ".join(limits)}
    if layers and dataset.truth is None:
        provenance["truth"] = f"not known for the first {layers:,} layers"
    return replace(dataset, provenance=provenance)


def _is_own_bias(network: Network, bias: float, official: bool) -> bool:
    """Return whether the truth goes with this bias: files in the official layout do not say; the challenge does."""
    if official:
        return bool(CHALLENGE_BIAS.get(network.inputs, bias) == bias)
    weighted = (layer for layer in network if isinstance(layer, FullyConnected | Conv2d))
    return all(bool((layer.bias_vector() == np.float32(bias)).all()) for layer in weighted)


def _with_other_bias(dataset: Dataset, bias: float) -> Dataset:
    provenance = dataset.provenance | {
        "bias": f"{bias:g}, instead of the dataset's own",
        "truth": "not known: the bias is another one",
    }
    return replace(dataset, network=dataset.network.with_bias(bias), truth=None, provenance=provenance)
