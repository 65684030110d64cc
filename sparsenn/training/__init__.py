"""Training of MLPs: data, initial parameters, the loop over epochs, evaluation. Trainers are in the backends."""

from sparsenn.backends.trainer import Evaluation, TrainingResult
from sparsenn.training.data import TrainingData, read_data
from sparsenn.training.evaluation import evaluate
from sparsenn.training.loop import train

__all__ = ["Evaluation", "TrainingData", "TrainingResult", "evaluate", "read_data", "train"]
