"""What every trainer of MLPs is given, and what it does: the protocol behind the operation `train`.

The `launch` of such a kernel makes a trainer, `(problem, device_index) -> Trainer`. The arithmetic is fixed here, so
that trainers differ only in speed and in the order of their sums: plain mini-batch gradient descent with momentum, v =
momentum·v - rate·gradient, w = w + v, by backpropagation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from sparsenn.errors import ShapeError, UsageError, unknown_name
from sparsenn.formats import Array, Scaling
from sparsenn.formats.arrays import real_number, size
from sparsenn.layers import Identity, Linear
from sparsenn.layers.activation_names import table_row
from sparsenn.model import LOSSES
from sparsenn.network import Network
from sparsenn.printable import one_line

TRAINING_OPERATION = "train"  # the operation's name in the registry

PRECISIONS = ("float32", "tf32", "float16")
"""What products of matrices are computed in; sums, parameters and updates are float32 in any case."""

Velocities: TypeAlias = tuple[tuple[Array, Array], ...]
"""Per layer the velocities of weights (inputs, outputs) and bias (outputs,), float32."""


@dataclass(frozen=True, eq=False)
class TrainingProblem:
    """Everything that a trainer needs; faults of its numbers raise UsageError, of its shapes ShapeError."""

    layers: tuple[Linear, ...]  # the initial parameters; every bias is a vector
    inputs: Array  # float32 of shape (rows, inputs), row-major
    targets: Array  # float32 of shape (rows, outputs), row-major; classes are one-hot
    loss: str  # one of `LOSSES`; cross_entropy takes raw outputs, of no activation
    batch_size: int  # rows of a mini-batch
    learning_rate: float  # factor of the gradient
    momentum: float = 0.0  # factor of the previous velocity

    def __post_init__(self) -> None:
        if self.loss not in LOSSES:
            raise unknown_name("loss", self.loss, LOSSES)
        self._check_shapes()
        activation = self.layers[-1].activation
        if self.loss == "cross_entropy" and not isinstance(activation, Identity):
            raise UsageError(f"cross_entropy takes raw outputs, but the last layer has the activation {activation}")
        object.__setattr__(self, "batch_size", size(self.batch_size, "the batch size"))
        for name in ("learning_rate", "momentum"):
            object.__setattr__(self, name, real_number(getattr(self, name), f"the {name.replace('_', ' ')}"))
        if self.learning_rate <= 0:
            raise UsageError(f"a learning rate of {self.learning_rate:g} is not a positive number")
        if not 0 <= self.momentum < 1:
            raise UsageError(f"a momentum of {self.momentum:g} is not in 0 to 1, 1 excluded")

    def _check_shapes(self) -> None:
        if not self.layers:
            raise ShapeError("training needs at least one layer")
        width = self.layers[0].inputs
        for number, layer in enumerate(self.layers, start=1):
            if layer.inputs != width:
                raise ShapeError(f"layer {number} takes {layer.inputs} inputs, but there are {width}")
            width = layer.outputs
            row = table_row(layer.activation)
            if row is None or not row.is_trainable:
                raise UsageError(f"layer {number} has the activation {layer.activation}, which has no known derivative")
        rows = len(self.inputs)
        if not rows:
            raise ShapeError("training needs at least one row")
        for what, array, columns in (("inputs", self.inputs, self.layers[0].inputs), ("targets", self.targets, width)):
            if array.shape != (rows, columns):
                raise ShapeError(f"the {what} have shape {array.shape}; the layers take ({rows}, {columns})")


class Trainer(Protocol):
    """Parameters and velocities on a device, and the pass over the data that changes them."""

    def epoch(self, order: Array) -> float:
        """Pass once over the rows in the given order (int64 permutation) and return the loss.

        Mini-batches are `batch_size` consecutive entries of the order; the last may be smaller. Each makes one update:
        v = momentum·v - rate·gradient, w = w + v. The loss is averaged over rows, each taken before its batch's update,
        and summed in float64; it is NaN or infinite where the training diverged.
        """

    def layers(self) -> tuple[Linear, ...]:
        """Return the parameters as they are now, on the host."""

    def velocities(self) -> Velocities:
        """Return the velocities as they are now, on the host."""

    def restore(self, layers: tuple[Linear, ...], velocities: Velocities) -> None:
        """Replace parameters and velocities by those of an earlier run."""


@dataclass(frozen=True)
class Evaluation:
    """How well a network does on some rows.

    Parameters
    ----------
    rows : int
        Number of samples.
    loss : str
        Name of the loss, one of `LOSSES`.
    value : float
        The loss over all rows, in float64.
    accuracy : float or None
        Share of samples whose largest output is that of their class; None where the targets are not classes.
    """

    rows: int
    loss: str
    value: float
    accuracy: float | None


@dataclass(frozen=True, eq=False)
class TrainingResult:
    """What a training gives back.

    Parameters
    ----------
    network : Network
        The trained layers.
    loss : str
        Name of the loss, one of `LOSSES`.
    classes : bool
        Whether the targets are classes.
    losses : tuple of float
        Loss of each epoch, the first one first, those before a resumption included.
    validation : tuple of (int, Evaluation)
        Epochs, counted from 1, and how well the network did after them; empty where there are no validation data.
    rows : int
        Samples of an epoch.
    device : str
        Where it was computed.
    kernel : str
        Name of the kernel that computed it.
    precision : str
        The precision of products.
    first_epoch : int
        Epochs that were done before, in the run that this one resumed; 0 for a fresh one.
    seconds : float
        Time spent in the epochs of this run, evaluation, checkpoints and compiling left out.
    options : dict of str to plain values, optional
        Everything that decides the result, as plain values.
    scaling : Scaling, optional
        What was done to the inputs before the first layer; None if nothing.
    target_scaling : Scaling, optional
        What was done to the targets that were trained for, and is undone by the network's last layer; None if nothing.
        The losses of epochs are those of scaled targets.
    evaluation : Evaluation, optional
        How well the network does on the rows that it was trained with, or some of them if they are very many.
    baseline : Evaluation, optional
        How well it would do to give, whatever the inputs are, the mean of the targets trained with: of the validation
        data where there are some.
    compile_seconds : float, default 0
        Time spent on compiling functions and kernels, or on loading CUDA kernels.
    """

    network: Network
    loss: str
    classes: bool
    losses: tuple[float, ...]
    validation: tuple[tuple[int, Evaluation], ...]
    rows: int
    device: str
    kernel: str
    precision: str
    first_epoch: int
    seconds: float
    options: dict[str, object] = field(default_factory=dict)
    scaling: Scaling | None = None
    target_scaling: Scaling | None = None
    evaluation: Evaluation | None = None
    baseline: Evaluation | None = None
    compile_seconds: float = field(default=0.0, repr=False)

    __repr__ = one_line

    @property
    def epochs(self) -> int:
        """Epochs done, those before a resumption included."""
        return len(self.losses)

    @property
    def rows_per_second(self) -> float | None:
        """Rows that this run trained with in a second; None where it had nothing to do."""
        done = self.epochs - self.first_epoch
        return done * self.rows / self.seconds if done and self.seconds > 0 else None
