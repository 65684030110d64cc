"""Files: one module a format, each with functions to read and to write it.

===============  ====================================================================================================
`files`          models of any kind, by their files' names
`networks`       networks from models in any form
`hdf5`           whole problems (network, inputs, truth, provenance), results, models and checkpoints in HDF5
`challenge`      the Sparse DNN Graph Challenge's text: images, layers, categories, and folders or archives of them
`arrays`         `.npy`, `.npz`, `.idx`, `.safetensors` and `.mtx`: dense arrays and sparse matrices
`tables`         CSV and Parquet; rows that are read in ranges; predictions, in all forms that rows are read in
`importers`      networks from ONNX files (and into them), PyTorch, Keras, scikit-learn and bare weights
===============  ====================================================================================================

Files are read strictly: damaged or ambiguous files, and those too large for what they declare, are refused with the
file and the line, layer or dataset. Files are written whole or not at all (`sparsenn.runtime.storage`). The names below
are imported when they are first used, for each format brings a library with it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparsenn.io.arrays.idx import read_idx
    from sparsenn.io.arrays.matrix_market import read_matrix_market, write_matrix_market
    from sparsenn.io.challenge.folder import read_official, write_official
    from sparsenn.io.challenge.layout import CHALLENGE_BIAS, CHALLENGE_CLIP
    from sparsenn.io.challenge.tsv import (
        read_images,
        read_layer,
        read_triples,
        write_categories,
        write_images,
        write_layer,
    )
    from sparsenn.io.dataset import Dataset
    from sparsenn.io.files import is_model, read_model, write_model
    from sparsenn.io.hdf5.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
    from sparsenn.io.hdf5.dataset import read_dataset, write_dataset, write_result
    from sparsenn.io.importers.keras.model import from_keras
    from sparsenn.io.importers.sklearn.model import from_sklearn
    from sparsenn.io.importers.torch.module import from_torch
    from sparsenn.io.importers.weights import from_weights

__all__ = [
    "CHALLENGE_BIAS",
    "CHALLENGE_CLIP",
    "Checkpoint",
    "Dataset",
    "from_keras",
    "from_sklearn",
    "from_torch",
    "from_weights",
    "is_model",
    "read_checkpoint",
    "read_dataset",
    "read_idx",
    "read_images",
    "read_layer",
    "read_matrix_market",
    "read_model",
    "read_official",
    "read_triples",
    "write_categories",
    "write_checkpoint",
    "write_dataset",
    "write_images",
    "write_layer",
    "write_matrix_market",
    "write_model",
    "write_official",
    "write_result",
]

_HOMES = {
    "arrays.idx": ("read_idx",),
    "arrays.matrix_market": ("read_matrix_market", "write_matrix_market"),
    "challenge.folder": ("read_official", "write_official"),
    "challenge.layout": ("CHALLENGE_BIAS", "CHALLENGE_CLIP"),
    "challenge.tsv": ("read_images", "read_layer", "read_triples", "write_categories", "write_images", "write_layer"),
    "dataset": ("Dataset",),
    "files": ("is_model", "read_model", "write_model"),
    "hdf5.dataset": ("read_dataset", "write_dataset", "write_result"),
    "hdf5.checkpoint": ("Checkpoint", "read_checkpoint", "write_checkpoint"),
    "importers.keras.model": ("from_keras",),
    "importers.sklearn.model": ("from_sklearn",),
    "importers.torch.module": ("from_torch",),
    "importers.weights": ("from_weights",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
