"""Files: one module a format, each with functions to read and to write it.

==================  =================================================================================================
`hdf5`              a whole problem (network, inputs, truth, provenance), or a result, in one file that reads fast
`official`          the Sparse DNN Graph Challenge's layout: a folder of text, plain, compressed, or in an archive
`tsv`               that layout's single files: images, layers, categories
`matrix_market`     sparse matrices in `.mtx` files
`idx`               dense arrays in the format of MNIST
`npy`               NumPy's arrays in `.npy` and `.npz`, and sparse matrices as SciPy saves them
`fann`, `csv`       tables of inputs and targets for training, as text
`parquet`           tables of named columns
`model_output`      what a model gives for each row, in all forms that rows are read in
`model_files`       models of any kind, by their files' names
`model`             a trained network and its purpose
`hdf5_model`        models in HDF5: layers (also those of images), loss and provenance
`checkpoint`        a training under way
`weights`           arrays of weights and biases and nothing else, in `.npz`, `.safetensors` or any mapping
`importers`         networks from ONNX files (and into them), PyTorch, Keras and scikit-learn
==================  =================================================================================================

Files are read strictly: what is damaged, ambiguous or too large for what it declares is refused with the file and the
line, layer or dataset. Files are written whole or not at all (`sparsenn.runtime.storage`). The names below are imported
when they are first used, for each format brings a library with it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparsenn.io.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
    from sparsenn.io.csv import read_csv
    from sparsenn.io.dataset import Dataset
    from sparsenn.io.fann import read_fann, write_fann
    from sparsenn.io.hdf5 import read_dataset, write_dataset, write_result
    from sparsenn.io.idx import read_idx, write_idx
    from sparsenn.io.importers.keras.model import from_keras
    from sparsenn.io.importers.sklearn.model import from_sklearn
    from sparsenn.io.importers.torch.module import from_torch
    from sparsenn.io.layout import CHALLENGE_BIAS, CHALLENGE_CLIP
    from sparsenn.io.matrix_market import read_matrix_market, write_matrix_market
    from sparsenn.io.model import Model
    from sparsenn.io.model_files import is_model, read_model, write_model
    from sparsenn.io.official import read_official, write_official
    from sparsenn.io.tsv import read_images, read_layer, read_triples, write_categories, write_images, write_layer
    from sparsenn.io.weights import from_weights

__all__ = [
    "CHALLENGE_BIAS",
    "CHALLENGE_CLIP",
    "Checkpoint",
    "Dataset",
    "Model",
    "from_keras",
    "from_sklearn",
    "from_torch",
    "from_weights",
    "is_model",
    "read_checkpoint",
    "read_csv",
    "read_dataset",
    "read_fann",
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
    "write_fann",
    "write_idx",
    "write_images",
    "write_layer",
    "write_matrix_market",
    "write_model",
    "write_official",
    "write_result",
]

_HOMES = {
    "checkpoint": ("Checkpoint", "read_checkpoint", "write_checkpoint"),
    "csv": ("read_csv",),
    "dataset": ("Dataset",),
    "fann": ("read_fann", "write_fann"),
    "hdf5": ("read_dataset", "write_dataset", "write_result"),
    "idx": ("read_idx", "write_idx"),
    "importers.keras.model": ("from_keras",),
    "importers.sklearn.model": ("from_sklearn",),
    "importers.torch.module": ("from_torch",),
    "layout": ("CHALLENGE_BIAS", "CHALLENGE_CLIP"),
    "matrix_market": ("read_matrix_market", "write_matrix_market"),
    "model": ("Model",),
    "model_files": ("is_model", "read_model", "write_model"),
    "official": ("read_official", "write_official"),
    "tsv": ("read_images", "read_layer", "read_triples", "write_categories", "write_images", "write_layer"),
    "weights": ("from_weights",),
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
