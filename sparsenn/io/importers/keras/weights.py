"""Where the weights of Keras's layers are: by classes and numbers in `.keras` archives, by names in `.h5` files."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from sparsenn.errors import InputError
from sparsenn.formats import Array
from sparsenn.io.hdf5.reading import Hdf5Source

_DEEPEST = 32  # groups within groups

_MOST_GROUPS = 1 << 20
"""Groups and arrays of a file; links may make them endless."""

_NUMBERS = ("<f2", "<f4", "<f8", "<i4", "<i8")  # types of arrays that are read

_WHOLE = "model_weights"
"""The group of weights in an `.h5` file that describes the model, too."""

_CHECKPOINT = "_layer_checkpoint_dependencies"
"""What versions 2.12 and 2.13 call the group of a model's layers."""

_NUMBER = re.compile(r"_(\d{1,9})$", re.ASCII)  # what follows a name that was there before


class _NumberedWeights:
    """Weights of a `.keras` archive: layers are named by their classes and counted, arrays by their numbers.

    On Windows, versions before 3 wrote paths with backslashes, which HDF5 takes for parts of names.
    """

    def __init__(self, source: Hdf5Source) -> None:
        self.source = source
        self.stored = {
            path.replace("\\", "/"): path for path in (group.removesuffix("/vars") for group in _groups(source, ""))
        }
        self.numbers = self._numbers()

    def _numbers(self) -> dict[str, list[int]]:
        numbers: dict[str, set[int]] = defaultdict(set)
        for path in self.stored:
            parts = path.split("/")
            for end, part in enumerate(parts[1:], start=2):
                if parts[end - 2] == _CHECKPOINT:
                    suffix = _NUMBER.search(part)
                    plain = part if suffix is None else part[: suffix.start()]
                    numbers["/".join([*parts[: end - 1], plain])].add(0 if suffix is None else int(suffix[1]))
        return {path: sorted(found) for path, found in numbers.items()}

    def inner(self, path: str, kind: str, name: str, counted: Counter[str]) -> str:
        """Return where a layer of the model at `path` is, as the next of its class that `counted` has counted."""
        plain = re.sub(r"\W+", "", kind)
        plain = re.sub("([a-z])([A-Z])", r"\1_\2", re.sub("(.)([A-Z][a-z]+)", r"\1_\2", plain)).lower()
        number = counted[plain]
        counted[plain] += 1
        # There, layers with weights are counted twice in some versions, so that every second number is left out.
        left = self.numbers.get(f"{path}{_CHECKPOINT}/{plain}")
        if left:
            number = left[number] if number < len(left) else left[-1] + 1
            folder = f"{path}{_CHECKPOINT}"
        else:
            folder = f"{path}layers"
        return f"{folder}/{plain}_{number}/" if number else f"{folder}/{plain}/"

    def weights(self, path: str, place: str, names: Sequence[str]) -> list[Array]:
        """Return the arrays of a layer, of which `names` are in the order in which Keras makes them."""
        group = f"{self.stored.get(path.rstrip('/'), path.rstrip('/'))}/vars"
        there = self.source.names(group)
        if sorted(there) != sorted(map(str, range(len(names)))):
            raise InputError(f"has {len(there)} arrays; {len(names)} are needed: {', '.join(names)}")
        return [self.source.array(f"{group}/{number}", *_NUMBERS) for number in range(len(names))]


class _NamedWeights:
    """Weights of an `.h5` file: a group for each layer of the model, in which arrays lie under their own names.

    These begin with the layer's name, or with another one: TensorFlow numbers names that it has met before.

    root : the group of all layers.
    """

    def __init__(self, source: Hdf5Source, root: str) -> None:
        self.source = source
        self.root = root
        self.owners: dict[str, str] = {}

    def inner(self, path: str, kind: str, name: str, counted: Counter[str]) -> str:
        """Return where a layer of a model is; those of models within the model lie deeper in its group."""
        return path or f"{self.root}{name}"

    def weights(self, path: str, place: str, names: Sequence[str]) -> list[Array]:
        """Return the arrays of a layer: those that its group lists, by their names or else in order, as Keras does."""
        ordered = self.source.texts_of(path, "weight_names") if "/" not in place else None
        if ordered is not None:
            found = {_last(name): f"{path}/{name}" for name in ordered}
            if set(found) != set(names) and len(ordered) == len(names):
                found = {name: f"{path}/{array}" for name, array in zip(names, ordered, strict=True)}
        else:
            found = self._by_name(path, place)
        if "kernel" in names and "depthwise_kernel" in found:  # as versions before 3 call it
            found["kernel"] = found.pop("depthwise_kernel")
        if set(found) != set(names):
            raise InputError(f"has the arrays {', '.join(found) or 'none'}; {', '.join(names)} are needed")
        arrays = [found[name] for name in names]
        for array in arrays:
            if self.owners.setdefault(array, place) != place:
                raise InputError(f"its array {array} is that of {self.owners[array]}; give layers different names")
        return [self.source.array(array, *_NUMBERS) for array in arrays]

    def _by_name(self, path: str, place: str) -> dict[str, str]:
        """Return the arrays of a layer by their last names: those of the group that is called most like the layer."""
        groups: dict[str, dict[str, str]] = defaultdict(dict)
        for folder in _groups(self.source, path):
            for name in self.source.array_names(folder):
                groups[folder.removeprefix(path)][_last(name)] = f"{folder}/{name}"
        wanted = place.split("/")
        likeness = {folder: _likeness(folder.split("/"), wanted) for folder in groups}
        most = max(likeness.values(), default=(0, 0))
        alike = [folder for folder, degree in likeness.items() if degree == most]
        if len(wanted) == 1 and len(groups) == 1:  # nothing else can be meant
            return groups[alike[0]]
        if most == (0, 0) or not alike:
            return {}
        if len(alike) > 1:
            raise InputError(f"its arrays may be those of {' or '.join(alike)}; give layers different names")
        return groups[alike[0]]


KerasWeights: TypeAlias = _NumberedWeights | _NamedWeights
"""The weights of the layers of a model."""


def stored_weights(source: Hdf5Source) -> KerasWeights:
    """Return the weights of an HDF5 file, in which they may be by numbers or by names."""
    if not source.has_attribute("layer_names"):
        tops = {name.replace("\\", "/").partition("/")[0] for name in source.names("")}
        if tops & {"layers", _CHECKPOINT}:
            return _NumberedWeights(source)
        if _WHOLE in tops:
            return _NamedWeights(source, f"{_WHOLE}/")
    return _NamedWeights(source, "")


def _last(path: str) -> str:
    """Return what an array is called: `dense_1/kernel:0` is a kernel."""
    return path.rpartition("/")[2].partition(":")[0]


def _likeness(folder: Sequence[str], place: Sequence[str]) -> tuple[int, int]:
    """Return how many last names of a group are those of a layer and its models; one that only has a number, less."""
    same = 0
    for own, wanted in zip(reversed(folder), reversed(place), strict=False):
        if own != wanted:
            break
        same += 1
    numbered = re.fullmatch(rf"{re.escape(place[-1])}_\d+", folder[-1], re.ASCII) is not None
    return same, int(numbered)


def _groups(source: Hdf5Source, path: str) -> Iterator[str]:
    """Yield the paths of a group and of all groups in it, but for the empty ones."""
    waiting, met = [(path, 0)], 0
    while waiting:
        group, depth = waiting.pop()
        names = source.names(group)
        met += len(names)
        if met > _MOST_GROUPS or depth > _DEEPEST:
            raise InputError(f"the weights are in more than {_MOST_GROUPS:,} groups, or in groups {_DEEPEST} deep")
        if names:
            yield group
        waiting += [(f"{group}/{name}" if group else name, depth + 1) for name in reversed(names)]
