"""Whole datasets by rule: a RadiX-Net, images to run through it, and the truth where that is affordable."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

from sparsenn import __version__
from sparsenn.datasets.digits import digit_inputs
from sparsenn.datasets.mnist import OFFICIAL_NONZEROS, TRAINING_SHAPE, find_training_images, mnist_inputs
from sparsenn.datasets.radixnet import radixnet
from sparsenn.datasets.truth import compute_truth
from sparsenn.errors import FileFormatError, UsageError, unknown_name
from sparsenn.formats import CSR
from sparsenn.io.challenge.layout import challenge_bias
from sparsenn.io.dataset import Dataset
from sparsenn.runtime.progress import Progress, ProgressOption, shown_progress
from sparsenn.runtime.storage import file_sha256

INPUT_KINDS = ("auto", "mnist", "digits")


def generate(
    neurons: int,
    layers: int,
    *,
    inputs: str = "auto",
    images: int = TRAINING_SHAPE[0],
    mnist: str | os.PathLike[str] | None = None,
    radices: Sequence[int] | None = None,
    kronecker: int = 16,
    seed: int = 0,
    weight: float = 0.0625,
    bias: float | None = None,
    truth: bool = True,
    progress: ProgressOption = None,
) -> Dataset:
    """Generate a dataset in memory.

    Parameters
    ----------
    neurons : int
        Width of every layer: a square.
    layers : int
        Number of layers.
    inputs : str, default "auto"
        Which inputs: "mnist" for the challenge's, "digits" for procedural ones, "auto" for the former where MNIST is at
        hand and its images can be enlarged to that size.
    images : int, default 60000
        Number of samples; MNIST gives at most 60,000.
    mnist : str or path-like, optional
        Folder of the MNIST files; unless given, see `find_training_images`.
    radices : sequence of int, optional
        As `radixnet` takes it.
    kronecker : int, default 16
        As `radixnet` takes it.
    seed : int, default 0
        Seed of the permutations and of the digits.
    weight : float, default 0.0625
        Value of every weight.
    bias : float, optional
        Bias of every neuron; the challenge's for 1024, 4096, 16384 and 65536 neurons unless given.
    truth : bool, default True
        Whether to compute the true categories, where that is affordable.
    progress : callable or bool, optional
        As `sparsenn.Session.run` takes it; called for layers, inputs and truth, one after the other.

    Returns
    -------
    Dataset
        Its truth, by the float64 reference, is there only if inputs × edges is at most 4e12.

    Raises
    ------
    UsageError
        A number is out of range, the numbers do not fit together, or MNIST is asked for and not found.
    FileFormatError
        The MNIST file is damaged, or another set of images.
    ResourceError
        Memory does not suffice.
    """
    bias = challenge_bias(neurons) if bias is None else bias
    with shown_progress(progress) as report:
        network = radixnet(
            neurons,
            layers,
            radices=radices,
            kronecker=kronecker,
            seed=seed,
            weight=weight,
            bias=bias,
            progress=report,
        )
        if input_kind(neurons, inputs, mnist) == "mnist":
            features, source = _mnist(neurons, images, mnist, report)
        else:
            features = digit_inputs(neurons, images, seed=seed, progress=report)
            source = f"procedural digits, seed {seed}"
        categories, verdict = compute_truth(network, features, report) if truth else (None, "not asked for")
    shown = "all 2" if radices is None else " ".join(map(str, radices))
    made = f"radices {shown}, Kronecker factor {kronecker}, weight {weight:g}, bias {bias:g}, seed {seed}"
    provenance = {
        "generator": f"sparsenn {__version__}",
        "network": f"RadiX-Net, {made}",
        "inputs": source,
        "truth": verdict,
    }
    return Dataset(f"radixnet-{neurons}x{layers}", network, features, categories, provenance)


def input_kind(neurons: int, inputs: str = "auto", mnist: str | os.PathLike[str] | None = None) -> str:
    """Return "mnist" or "digits": what `generate` takes for that many neurons."""
    if inputs not in INPUT_KINDS:
        raise unknown_name("kind of inputs", inputs, INPUT_KINDS)
    if inputs != "auto":
        return inputs
    larger = math.isqrt(neurons) > max(TRAINING_SHAPE[1:])
    return "mnist" if larger and find_training_images(mnist) else "digits"


def _mnist(neurons: int, images: int, folder: str | os.PathLike[str] | None, progress: Progress) -> tuple[CSR, str]:
    whole = mnist_inputs(neurons, folder, progress=progress)
    path = find_training_images(folder)
    assert path is not None  # else there were no inputs
    if neurons in OFFICIAL_NONZEROS and whole.nnz != OFFICIAL_NONZEROS[neurons]:
        raise FileFormatError(
            path,
            f"enlarged to {neurons} pixels gives {whole.nnz:,} non-zeros instead of {OFFICIAL_NONZEROS[neurons]:,}: "
            "these are not the MNIST training images",
        )
    if not 1 <= images <= whole.shape[0]:
        raise UsageError(f"MNIST has no {images:,} training images; give 1 to {whole.shape[0]:,}")
    checksum = file_sha256(path)
    source = f"MNIST training images enlarged as for the challenge, from {path.name} (SHA-256 {checksum})"
    return whole.slice_groups(0, images), source
