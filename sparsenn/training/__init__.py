"""Training of MLPs: data, initial parameters, the loop over epochs, evaluation. Trainers are in the backends.

Trained models, of images too, are run on data here.
"""

from sparsenn.backends.trainer import Evaluation, TrainingResult
from sparsenn.training.data import InputRows, TrainingData
from sparsenn.training.evaluation import evaluate
from sparsenn.training.inference import ModelResult, run_model
from sparsenn.training.loop import train, trained_model
from sparsenn.training.resize import resize_bilinear
from sparsenn.training.rows import read_data, read_rows

__all__ = [
    "Evaluation",
    "InputRows",
    "ModelResult",
    "TrainingData",
    "TrainingResult",
    "evaluate",
    "read_data",
    "read_rows",
    "resize_bilinear",
    "run_model",
    "train",
    "trained_model",
]
