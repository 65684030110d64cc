"""The official layout of the Sparse DNN Graph Challenge: one folder of tab-separated text.

::

    sparse-images-{N}.tsv[.gz]          input images
    neuron{N}/n{N}-l{1..L}.tsv[.gz]     one file a layer, or all of them in
    neuron{N}.tar.gz                    one archive, which is read as it is
    neuron{N}-l{L}-categories.tsv       the true categories after L layers
"""

from __future__ import annotations

import io
import os
import tarfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any, Self, cast

import numpy as np

from sparsenn.errors import FileFormatError, InputError, UsageError
from sparsenn.formats import CSC, CSR, Array
from sparsenn.formats.arrays import frozen
from sparsenn.io.bounded import Source, check_length, reading
from sparsenn.io.challenge.layout import (
    CHALLENGE_BIAS,
    CHALLENGE_CLIP,
    Layout,
    challenge_bias,
    find_layout,
    layer_number,
)
from sparsenn.io.challenge.tsv import (
    format_layer,
    parse_layer,
    read_categories,
    read_images,
    text_limit,
    write_categories,
    write_images,
    write_layer,
)
from sparsenn.io.dataset import Dataset, check_limits
from sparsenn.layers import ReLU, SparseLinear
from sparsenn.network import Network
from sparsenn.runtime.progress import Progress, silent
from sparsenn.runtime.storage import adding_to, open_to_write, replacing
from sparsenn.runtime.workers import begin, thread_count

_LONGEST_HEADER = 1 << 16  # bytes of a name or of a PAX header in an archive

_EXTENSIONS = frozenset(
    (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)
)
"""Types of headers that describe the member after them."""


def read_official(
    folder: str | os.PathLike[str],
    neurons: int | None = None,
    layers: int | None = None,
    bias: float | None = None,
    limit_inputs: int | None = None,
    progress: Progress = silent,
) -> Dataset:
    """Read a folder in the official layout; archives are read as they are, without unpacking to disk.

    Parameters
    ----------
    folder : str or path-like
        The folder.
    neurons : int, optional
        Which network to read; only needed where the folder holds several.
    layers : int, optional
        How many layers to read, from the first. Unless given: the most for which there is a file of categories and all
        layers are there; all layers if there is no file of categories.
    bias : float, optional
        Bias of every layer; the challenge's for 1024, 4096, 16384 and 65536 neurons unless given.
    limit_inputs : int, optional
        How many images to read, from the first, with their categories; all unless given.
    progress : callable, optional
        Told of the bytes read of each file.

    Returns
    -------
    Dataset
        The network, its inputs, and the truth where it is known.

    Raises
    ------
    FileFormatError
        A file is damaged, truncated, or not what it should be; the message names the line.
    InputError
        A file, or a layer, is missing.
    UsageError
        The folder holds several networks, none, or not the one asked for; or the bias is not known.
    ResourceError
        A file cannot be read.

    Notes
    -----
    The files do not say how many images there are, and images without a pixel are in none of their lines. So there
    are as many as the largest image or category asks for.
    """
    check_limits(layers, limit_inputs)
    layout = find_layout(Path(folder), neurons)
    bias = challenge_bias(layout.neurons) if bias is None else bias
    weights = _read_weights(layout, layers, progress)
    truth_path = layout.truths.get(len(weights))
    truth = None if truth_path is None else read_categories(truth_path)
    images = read_images(layout.images, layout.neurons, limit_inputs=limit_inputs, progress=progress)
    if truth is not None and truth_path is not None:
        images, truth = _reconcile(images, truth, limit_inputs, truth_path)
    network = Network(tuple(SparseLinear(matrix, bias, ReLU(CHALLENGE_CLIP)) for matrix in weights))
    provenance = {"layout": "official", "inputs": str(layout.images), "network": str(layout.network)}
    if truth_path is not None:
        provenance["truth"] = str(truth_path)
    return Dataset(f"challenge-{layout.neurons}x{len(weights)}", network, images, truth, provenance)


def _read_weights(layout: Layout, layers: int | None, progress: Progress) -> list[CSC]:
    """Read layers 1 to `layers`, or as many as `read_official` says."""
    most = layers or max(layout.truths, default=None)
    read = _read_folder if layout.network.is_dir() else _read_archive
    found = _parsed(read(layout, most, progress), layout)
    complete = next(number for number in range(1, len(found) + 2) if number not in found) - 1
    depths = [layers] if layers else sorted(layout.truths) or [max(found, default=1)]
    fitting = [depth for depth in depths if depth <= complete]
    if not fitting:
        name = f"n{layout.neurons}-l{complete + 1}.tsv"
        raise InputError(
            f"{layout.network / name}: layer {complete + 1} is missing; {depths[0]} layers are needed, "
            f"{len(found)} are there"
        )
    return [found[number] for number in range(1, fitting[-1] + 1)]


def _parsed(texts: Iterable[tuple[int, str, bytes]], layout: Layout) -> dict[int, CSC]:
    """Parse layers on all threads while the next ones are being read."""
    layers: dict[int, CSC] = {}
    waiting: deque[tuple[int, Callable[[], CSC]]] = deque()
    for number, name, text in texts:
        waiting.append((number, begin(partial(parse_layer, text, name, layout.shape))))
        while len(waiting) > 2 * thread_count():
            done, layer = waiting.popleft()
            layers[done] = layer()
    layers.update((done, layer()) for done, layer in waiting)
    return layers


def _read_folder(layout: Layout, most: int | None, progress: Progress) -> Iterator[tuple[int, str, bytes]]:
    """Yield number, name and text of the layers in a folder, up to layer `most`."""
    with reading(layout.network):
        names = sorted((item.name for item in layout.network.iterdir()), reverse=True)
    files = {number: layout.network / name for name in names if (number := layer_number(layout, name))}
    numbers = sorted(number for number in files if most is None or number <= most)
    for done, number in enumerate(numbers, start=1):
        with Source(files[number], text_limit(layout.shape)) as source:
            yield number, str(files[number]), source.read(text_limit(layout.shape) + 1)
        progress(f"read {layout.network.name}", done, len(numbers))


def _read_archive(layout: Layout, most: int | None, progress: Progress) -> Iterator[tuple[int, str, bytes]]:
    """Yield number, name and text of the layers in an archive, in its order, until all up to `most` have come."""
    seen: set[int] = set()
    task = f"read {layout.network.name}"
    with Source(layout.network) as source, _opened_archive(source) as archive:
        for member in archive:
            cast(Any, archive).members.clear()  # else all that were passed over would stay in memory
            archive.pax_headers = {}
            number = _number_of_member(layout, member)
            if number in seen:
                raise FileFormatError(layout.network, f"holds layer {number} twice")
            if number is not None and (most is None or number <= most):
                seen.add(number)
                text = cast(IO[bytes], archive.extractfile(member)).read()
                yield number, f"{layout.network}/{Path(member.name).name}", text
                progress(task, source.consumed, source.size)
            if len(seen) == most:
                break
    progress(task, source.size, source.size)


def _number_of_member(layout: Layout, member: tarfile.TarInfo) -> int | None:
    """Return which layer a member is; None if it is none. Nothing is ever written under a member's name."""
    path = PurePosixPath(member.name)
    number = layer_number(layout, path.name)
    if number is None:
        return None
    if not member.isreg() or path.is_absolute() or ".." in path.parts:
        raise FileFormatError(layout.network, f"the member {member.name!r} is not a plain file inside the archive")
    if member.size > text_limit(layout.shape):
        raise FileFormatError(
            layout.network,
            f"the member {member.name!r} has {member.size:,} bytes; a layer needs at most {text_limit(layout.shape):,}",
        )
    return number


class _StrictTarInfo(tarfile.TarInfo):
    """A member whose header must be sound, and small.

    `tarfile` takes a damaged or missing header for the archive's end, reads a long name or a PAX header into memory
    whatever its size, and keeps a list of the pieces of a sparse file.
    """

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        try:
            member = super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            if len(buf) == tarfile.BLOCKSIZE and not any(buf):  # the proper end
                raise
            raise tarfile.ReadError(str(error)) from error
        if member.type in _EXTENSIONS and member.size > _LONGEST_HEADER:
            raise tarfile.ReadError(f"a header of {member.size:,} bytes")
        if member.type == tarfile.GNUTYPE_SPARSE:
            raise tarfile.ReadError("a sparse file")
        return member

    def _proc_gnusparse_10(self, *_: object) -> None:
        raise tarfile.ReadError("a sparse file")


@contextmanager
def _opened_archive(source: Source) -> Iterator[tarfile.TarFile]:
    """Open a tar archive that is read once from front to back, turning what `tarfile` raises into our errors."""
    try:
        with tarfile.open(fileobj=cast(IO[bytes], source), mode="r|", tarinfo=_StrictTarInfo) as archive:
            yield archive
    except (tarfile.TarError, ValueError, OverflowError, RecursionError) as error:
        raise FileFormatError(
            source.path, f"not a tar archive, or damaged ({error}); fetch or make it again"
        ) from error


def _reconcile(images: CSR, truth: Array, limit_inputs: int | None, path: Path) -> tuple[CSR, Array]:
    """Cut the truth to the inputs asked for, and append the empty images that only the truth has."""
    if limit_inputs is not None:
        truth = truth[truth < limit_inputs]
    rows = max(images.shape[0], int(truth.max(initial=-1)) + 1)
    check_length(path, "images", rows, images.nnz)
    indptr = frozen(np.pad(images.indptr, (0, rows - images.shape[0]), mode="edge"))
    return CSR((rows, images.shape[1]), indptr, images.indices, images.values).validate(), truth


def write_official(
    dataset: Dataset,
    folder: str | os.PathLike[str],
    archive: bool = False,
    compress: bool = False,
    progress: Progress = silent,
) -> None:
    """Write a dataset in the official layout; either all its files appear in `folder`, or none.

    Parameters
    ----------
    dataset : Dataset
        Its layers must be of one width and share one bias and the challenge's activation, and its last input must have
        a pixel or be a true category, for the layout has no place for what is otherwise.
    folder : str or path-like
        Made if absent; must not hold a network of as many neurons.
    archive : bool, default False
        Write all layers into one `neuron{N}.tar.gz`.
    compress : bool, default False
        Write images, and layers that are not in an archive, through gzip.
    progress : callable, optional
        Told of the layers, then the entries written.

    Raises
    ------
    UsageError
        The layout cannot hold the dataset, or the folder already holds such a network.
    ResourceError
        The folder cannot be written to.
    """
    target, neurons = Path(folder), dataset.network.inputs
    _refuse_unwritable(dataset)
    taken = sorted(target.glob(f"neuron{neurons}[.-]*")) + sorted(target.glob(f"neuron{neurons}"))
    taken += sorted(target.glob(f"sparse-images-{neurons}.tsv*"))
    if taken:
        raise UsageError(f"{taken[0]}: is there already; choose another folder, or remove the old network first")
    suffix = ".gz" if compress else ""
    with adding_to(target) as staging:
        (_write_archive if archive else _write_layers)(dataset.network, staging, suffix, progress)
        write_images(staging / f"sparse-images-{neurons}.tsv{suffix}", dataset.inputs, progress)
        if dataset.truth is not None:
            write_categories(staging / f"neuron{neurons}-l{len(dataset.network)}-categories.tsv", dataset.truth)


def _refuse_unwritable(dataset: Dataset) -> None:
    remedy = "the official layout cannot express that; write HDF5 instead"
    layers = dataset.network.layers_of(SparseLinear)
    first = layers[0]
    expected = CHALLENGE_BIAS.get(first.inputs, first.bias)
    for number, layer in enumerate(layers, start=1):
        if (layer.inputs, layer.outputs) != (first.inputs, first.inputs):
            raise UsageError(f"layer {number} is {layer.inputs} x {layer.outputs}, not square of one width; {remedy}")
        if layer.activation != ReLU(CHALLENGE_CLIP):
            raise UsageError(f"layer {number} has the activation {layer.activation}; {remedy}")
        if isinstance(layer.bias, np.ndarray) or layer.bias != expected:
            shown = "a vector" if isinstance(layer.bias, np.ndarray) else layer.bias
            raise UsageError(f"layer {number} has as its bias {shown}, not {expected}; {remedy}")
        if not layer.edges:
            raise UsageError(f"layer {number} has no weights; {remedy}")
    if not dataset.inputs.nnz:
        raise UsageError(f"the inputs have no entry; {remedy}")
    count = int(np.flatnonzero(np.diff(dataset.inputs.indptr))[-1]) + 1
    if dataset.truth is not None:
        count = max(count, int(dataset.truth.max(initial=-1)) + 1)
    lost = dataset.inputs.shape[0] - count
    if lost:
        raise UsageError(f"the last {lost:,} of {dataset.inputs.shape[0]:,} inputs have no pixel; {remedy}")


def _write_layers(network: Network, folder: Path, suffix: str, progress: Progress) -> None:
    neurons = network.inputs
    inner = folder / f"neuron{neurons}"
    inner.mkdir()
    for number, layer in enumerate(network.layers_of(SparseLinear), start=1):
        write_layer(inner / f"n{neurons}-l{number}.tsv{suffix}", layer.weights)
        progress(f"write {inner.name}", number, len(network))


def _write_archive(network: Network, folder: Path, _: str, progress: Progress) -> None:
    neurons = network.inputs
    path = folder / f"neuron{neurons}.tar.gz"
    with (
        replacing(path) as temporary,
        open_to_write(temporary, path) as file,
        tarfile.open(fileobj=file, mode="w|") as archive,
    ):
        for number, layer in enumerate(network.layers_of(SparseLinear), start=1):
            text = format_layer(layer.weights)
            member = tarfile.TarInfo(f"neuron{neurons}/n{neurons}-l{number}.tsv")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text))
            progress(f"write {path.name}", number, len(network))
