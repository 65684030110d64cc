"""Datasets: generators, the challenge's inputs, the named problems, download, and one function that loads any."""

from sparsenn.datasets.cache import cache_folder
from sparsenn.datasets.digits import digit_inputs
from sparsenn.datasets.download import BASE_URL, download
from sparsenn.datasets.enlarge import enlarge
from sparsenn.datasets.generate import INPUT_KINDS, generate
from sparsenn.datasets.load import load
from sparsenn.datasets.mnist import OFFICIAL_NONZEROS, find_training_images, mnist_inputs, training_images
from sparsenn.datasets.named import named_file
from sparsenn.datasets.names import LAYER_COUNTS, NAMES, NEURON_COUNTS, parse_name
from sparsenn.datasets.radixnet import radixnet

__all__ = [
    "BASE_URL",
    "INPUT_KINDS",
    "LAYER_COUNTS",
    "NAMES",
    "NEURON_COUNTS",
    "OFFICIAL_NONZEROS",
    "cache_folder",
    "digit_inputs",
    "download",
    "enlarge",
    "find_training_images",
    "generate",
    "load",
    "mnist_inputs",
    "named_file",
    "parse_name",
    "radixnet",
    "training_images",
]
