"""Which files make up the official layout, what the challenge sets for them, and finding them in a folder."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from sparsenn.errors import FileFormatError, InputError, UsageError
from sparsenn.formats import INDEX32_LIMIT
from sparsenn.io.bounded import reading

CHALLENGE_BIAS = {1024: -0.30, 4096: -0.35, 16384: -0.40, 65536: -0.45}
"""The bias that the challenge sets for each number of neurons."""

CHALLENGE_CLIP = 32.0  # the upper bound of the challenge's ReLU

_IMAGES = re.compile(r"sparse-images-([1-9][0-9]{0,9})\.tsv(\.gz)?")
_NETWORK = re.compile(r"neuron([1-9][0-9]{0,9})(\.tar\.gz)?")
_CATEGORIES = re.compile(r"neuron([1-9][0-9]{0,9})-l([1-9][0-9]{0,5})-categories\.tsv")
_LAYER = re.compile(r"n([1-9][0-9]{0,9})-l([1-9][0-9]{0,5})\.tsv(\.gz)?")


@dataclass(frozen=True)
class Layout:
    """The files of one number of neurons: `network` is a folder or an archive, `truths` goes by layer count."""

    neurons: int
    images: Path
    network: Path
    truths: dict[int, Path]

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of every layer's weights."""
        return self.neurons, self.neurons


def find_layout(folder: Path, neurons: int | None = None) -> Layout:
    """Choose the network of `neurons`, or the only one, and see that its images and layers are there."""
    with reading(folder):
        names = sorted(item.name for item in folder.iterdir())
    images = {int(match[1]): match[0] for match in map(_IMAGES.fullmatch, reversed(names)) if match}
    networks = {int(match[1]): match[0] for match in map(_NETWORK.fullmatch, reversed(names)) if match}
    choices = sorted(images.keys() & networks.keys()) or sorted(images.keys() | networks.keys())
    listed = ", ".join(map(str, choices))
    if not choices:
        raise UsageError(f"{folder}: no sparse-images-N.tsv[.gz] and neuronN[.tar.gz] here; not the official layout")
    if neurons is None and len(choices) > 1:
        raise UsageError(f"{folder}: holds networks of {listed} neurons; say which one (--neurons)")
    chosen = choices[0] if neurons is None else neurons
    if chosen not in images and chosen not in networks:
        raise UsageError(f"{folder}: no network of {chosen} neurons here; there is {listed}")
    for found, name in ((images, f"sparse-images-{chosen}.tsv[.gz]"), (networks, f"neuron{chosen}[.tar.gz]")):
        if chosen not in found:
            raise InputError(f"{folder / name}: missing; the network of {chosen} neurons is not complete")
    if chosen > INDEX32_LIMIT:
        raise UsageError(f"{folder}: {chosen:,} neurons are beyond {INDEX32_LIMIT:,}")
    matches = [match for match in map(_CATEGORIES.fullmatch, names) if match and int(match[1]) == chosen]
    truths = {int(match[2]): folder / match[0] for match in matches}
    return Layout(chosen, folder / images[chosen], folder / networks[chosen], truths)


def challenge_bias(neurons: int) -> float:
    """Return the bias that the challenge sets for a number of neurons."""
    if neurons not in CHALLENGE_BIAS:
        known = ", ".join(f"{width:,}" for width in CHALLENGE_BIAS)
        raise UsageError(f"the challenge sets no bias for {neurons:,} neurons, only for {known}; give one (--bias)")
    return CHALLENGE_BIAS[neurons]


def is_official_name(name: str) -> bool:
    """Return whether a file or folder of this name is part of the official layout."""
    return any(pattern.fullmatch(name) for pattern in (_IMAGES, _NETWORK, _CATEGORIES, _LAYER))


def layer_number(layout: Layout, name: str) -> int | None:
    """Return a layer's number by the name of its file; None if it is no layer."""
    match = _LAYER.fullmatch(name)
    if not match:
        return None
    if int(match[1]) != layout.neurons:
        raise FileFormatError(
            layout.network, f"holds {match[0]}, a layer of {match[1]} neurons, among layers of {layout.neurons}"
        )
    return int(match[2])
