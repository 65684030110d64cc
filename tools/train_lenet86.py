#!/usr/bin/env python3
"""Train the example network for images, LeNet on MNIST enlarged to 86 × 86 pixels, and write it as models.

    tools/train_lenet86.py MNIST_FOLDER --output datasets/lenet86.h5 [--pruned-output datasets/lenet86-pruned.h5]
        [--classes FILE.json] [--epochs N] [--pruning-epochs N] [--seed S] [--device cuda]

The folder holds MNIST's four IDX files, plain or .gz. The network: convolution of 1 to 4 channels, 7 × 7, ReLU,
max-pool 2 × 2, convolution of 4 to 16 channels, 7 × 7, ReLU, max-pool 2 × 2, dense 4624 to 32, ReLU, dense 32 to 10,
softmax. It is trained by Adam on the cross-entropy, the learning rate following half a cosine down to zero.

For the pruned model training goes on from there. In the first half of its epochs the smallest weights of each dense
layer are set to zero, more and more of them along the cubic schedule of Zhu and Gupta ("To prune, or not to prune",
2017), until 90 % are; in the second half those that are left are tuned.

Both files say how they were made, and the accuracy on the 10,000 test images as PyTorch measured it; --classes gets the
classes that PyTorch predicted. PyTorch is a dependency of this script alone. Exit code 2: bad input or no PyTorch.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from sparsenn import __version__  # noqa: E402
from sparsenn.errors import ResourceError, SparseNNError, UsageError  # noqa: E402
from sparsenn.io import read_idx, write_model  # noqa: E402
from sparsenn.layers import Conv2d, Flatten, Identity, Linear, MaxPool2d, ReLU, Softmax, SparseLinear  # noqa: E402
from sparsenn.model import Model  # noqa: E402
from sparsenn.network import Network  # noqa: E402
from sparsenn.runtime.storage import replacing  # noqa: E402
from sparsenn.training import resize_bilinear  # noqa: E402

SIDE, CLASSES = 86, 10
DENSE = ("dense1", "dense2")
PRUNED = 0.9
"""Share of a dense layer's weights that the pruned model does without."""

BATCH = 128
RATE, PRUNING_RATE = 2e-3, 1e-3
MASK_STEPS = 50
"""Updates from one choice of the smallest weights to the next."""

TEST_BATCH = 2000
ENLARGED = 4000
"""Images enlarged at a time."""

Arrays = Mapping[str, np.ndarray]


# ---- What needs no PyTorch --------------------------------------------------------------------------------------


def to_model(parameters: Arrays, provenance: Mapping[str, str], pruned: bool = False) -> Model:
    """Return the network of these parameters, a softmax at its end.

    Parameters
    ----------
    parameters : float32, named and laid out as PyTorch does: conv1.weight (4, 1, 7, 7), conv1.bias (4,), conv2.weight
        (16, 4, 7, 7), conv2.bias (16,), dense1.weight (32, 4624), dense1.bias (32,), dense2.weight (10, 32) and
        dense2.bias (10,).
    provenance : how they came about.
    pruned : whether dense layers become sparse ones, of the weights that are not zero.

    Raises
    ------
    InputError
        A shape is another one, or a parameter is not finite.
    """

    def convolution(name: str) -> Conv2d:
        return Conv2d(parameters[f"{name}.weight"], parameters[f"{name}.bias"], ReLU())

    def dense(name: str, activation: ReLU | Identity) -> Linear | SparseLinear:
        weights, bias = parameters[f"{name}.weight"].T, parameters[f"{name}.bias"]
        if not pruned:
            return Linear(weights, bias, activation)
        from scipy.sparse import csc_array

        return SparseLinear.from_scipy(csc_array(weights), bias, activation)

    layers = (
        *(convolution("conv1"), MaxPool2d(2), convolution("conv2"), MaxPool2d(2), Flatten()),
        *(dense("dense1", ReLU()), dense("dense2", Identity()), Softmax()),
    )
    network = Network(layers, (1, SIDE, SIDE))
    return Model(network, "cross_entropy", True, dict(provenance), "bilinear")


def largest(weights: np.ndarray, zeros: float) -> np.ndarray:
    """Return which weights are kept where a share of them, the smallest in magnitude, becomes zero.

    Of equal ones the first go. Exactly round(zeros × weights) go.
    """
    order = np.argsort(np.abs(weights), axis=None, kind="stable")
    kept = np.ones(weights.size, bool)
    kept[order[: round(zeros * weights.size)]] = False
    return kept.reshape(weights.shape)


def share_of_zeros(step: int, steps: int, final: float = PRUNED) -> float:
    """Return the share of zeros after `step` of `steps`: final · (1 - (1 - step / steps)³), and then final."""
    left = 1 - step / steps if step < steps else 0.0
    return final * (1 - left**3)


def read_images(folder: Path, part: str) -> tuple[np.ndarray, np.ndarray]:
    """Return images (n, rows, columns) uint8 and labels (n,) of a part of MNIST, `train` or `t10k`.

    Raises
    ------
    SparseNNError
        A file is missing or damaged, or the two do not hold images and a label below 10 for each.
    """
    arrays = []
    for name in (f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte"):
        packed = folder / f"{name}.gz"
        arrays.append(read_idx(packed if packed.is_file() else folder / name))
    images, labels = arrays
    if images.ndim != 3 or images.dtype != np.uint8 or labels.shape != images.shape[:1] or labels.dtype != np.uint8:
        raise UsageError(
            f"{folder}: {part} holds images {images.dtype} {images.shape} and labels {labels.dtype} {labels.shape}; "
            "needed are bytes, (n, rows, columns) and (n,)"
        )
    if not labels.size or labels.max() >= CLASSES:
        raise UsageError(f"{folder}: {part} holds no images, or a label of {CLASSES} or more")
    return images, labels


def write_classes(path: Path, found: Mapping[Path, tuple[float, np.ndarray]]) -> None:
    """Write the accuracy and the predicted classes of each model as JSON, with the checksum of its file.

    The keys are the files' names; each holds sha256, accuracy and classes, a list with one number an image.
    """
    record = {
        path.name: {
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            "accuracy": accuracy,
            "classes": classes.tolist(),
        }
        for path, (accuracy, classes) in found.items()
    }
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(record, separators=(",", ":")) + "\n", encoding="ascii")


# ---- What does --------------------------------------------------------------------------------------------------


class Trainer:
    """The network in PyTorch, and the images on its device.

    Parameters
    ----------
    torch : the module.
    options : the command's.
    """

    def __init__(self, torch: Any, options: argparse.Namespace) -> None:
        self.torch, self.device = torch, torch.device(options.device)
        torch.manual_seed(options.seed)
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.backends.cudnn.benchmark = False
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
        self.images, self.labels = self._placed(*read_images(options.folder, "train"))
        self.test_images, self.test_labels = self._placed(*read_images(options.folder, "t10k"))
        self.order = torch.Generator().manual_seed(options.seed)
        nn = torch.nn
        layers = (
            *(("conv1", nn.Conv2d(1, 4, 7)), ("relu1", nn.ReLU()), ("pool1", nn.MaxPool2d(2))),
            *(("conv2", nn.Conv2d(4, 16, 7)), ("relu2", nn.ReLU()), ("pool2", nn.MaxPool2d(2))),
            *(("flatten", nn.Flatten()), ("dense1", nn.Linear(16 * 17 * 17, 32)), ("relu3", nn.ReLU())),
            ("dense2", nn.Linear(32, CLASSES)),
        )
        self.network = nn.Sequential(OrderedDict(layers))
        self.network.to(self.device)

    def _placed(self, images: np.ndarray, labels: np.ndarray) -> tuple[Any, Any]:
        """Enlarge images, part by part, onto the device."""
        torch = self.torch
        placed = torch.empty((len(images), 1, SIDE, SIDE), device=self.device)
        for start in range(0, len(images), ENLARGED):
            part = slice(start, start + ENLARGED)
            placed[part, 0] = torch.from_numpy(resize_bilinear(images[part], SIDE, SIDE)).to(self.device)
        return placed, torch.from_numpy(labels.astype(np.int64)).to(self.device)

    def train(self, epochs: int, rate: float, prune: bool = False) -> None:
        """Train; if it is to prune, dense layers lose weights in the first half, and keep those zeros to the end."""
        torch, rows = self.torch, len(self.images)
        steps = epochs * -(-rows // BATCH)
        half = steps // 2
        descent = torch.optim.Adam(self.network.parameters(), lr=rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(descent, steps)
        masks: dict[str, Any] = {}
        step = 0
        for epoch in range(1, epochs + 1):
            total = torch.zeros((), device=self.device)
            for picked in torch.randperm(rows, generator=self.order).to(self.device).split(BATCH):
                if prune and (step == half or (step < half and step % MASK_STEPS == 0)):
                    masks = self._masks(share_of_zeros(step, half))
                descent.zero_grad()
                loss = torch.nn.functional.cross_entropy(self.network(self.images[picked]), self.labels[picked])
                loss.backward()
                descent.step()
                schedule.step()
                self._apply(masks)
                total += loss.detach() * len(picked)
                step += 1
            if not torch.isfinite(total):
                raise UsageError(f"the training diverged in epoch {epoch}; take another --seed")
            print(f"epoch {epoch} of {epochs}: loss {float(total) / rows:.5f}, test {self.test()[0]:.2%}", flush=True)

    def _masks(self, zeros: float) -> dict[str, Any]:
        masks = {}
        for name in DENSE:
            weights = self.network.get_submodule(name).weight.detach()
            masks[name] = self.torch.from_numpy(largest(weights.cpu().numpy(), zeros)).to(self.device)
        return masks

    def _apply(self, masks: Mapping[str, Any]) -> None:
        with self.torch.no_grad():
            for name, mask in masks.items():
                self.network.get_submodule(name).weight.mul_(mask)

    def test(self) -> tuple[float, np.ndarray]:
        """Return the accuracy on the test images, and the class predicted for each."""
        with self.torch.no_grad():
            parts = [self.network(images).argmax(1) for images in self.test_images.split(TEST_BATCH)]
        found = self.torch.cat(parts)
        return float((found == self.test_labels).double().mean()), found.cpu().numpy()

    def parameters(self) -> dict[str, np.ndarray]:
        """Return the parameters as NumPy arrays, by PyTorch's names."""
        return {name: values.detach().cpu().numpy().copy() for name, values in self.network.state_dict().items()}

    def provenance(self, options: argparse.Namespace) -> dict[str, str]:
        """Return how the network came about, but for what pruning adds."""
        on_gpu = self.device.type == "cuda"
        device = self.torch.cuda.get_device_name(self.device) if on_gpu else str(self.device)
        rows, columns = read_images(options.folder, "t10k")[0].shape[1:]
        return {
            "data": f"MNIST: {len(self.images):,} training images, enlarged from {rows} × {columns} pixels (bilinear)",
            "made by": f"tools/train_lenet86.py of sparsenn {__version__}, PyTorch {self.torch.__version__}, {device}",
            "training": f"Adam, {options.epochs} epochs of batches of {BATCH}, learning rate {RATE:g}, cosine schedule",
            "seed": str(options.seed),
        }

    def deliver(self, path: Path, provenance: Mapping[str, str], pruned: bool) -> tuple[float, np.ndarray]:
        """Measure the accuracy, write the model with it, and return it with the predicted classes."""
        accuracy, classes = self.test()
        measured = {"test accuracy": f"{accuracy:.4f}", "test images": str(len(classes)), "measured by": "PyTorch"}
        write_model(path, to_model(self.parameters(), {**provenance, **measured}, pruned))
        print(f"{path}: {accuracy:.2%} of {len(classes):,} test images", flush=True)
        return accuracy, classes


def run(torch: Any, options: argparse.Namespace) -> None:
    """Train, write, prune, write."""
    trainer = Trainer(torch, options)
    found: dict[Path, tuple[float, np.ndarray]] = {}
    trainer.train(options.epochs, RATE)
    provenance = trainer.provenance(options)
    found[options.output] = trainer.deliver(options.output, provenance, pruned=False)
    if options.pruned_output is not None:
        trainer.train(options.pruning_epochs, PRUNING_RATE, prune=True)
        provenance["pruning"] = (
            f"{PRUNED:.0%} of each dense layer's weights, by magnitude: {options.pruning_epochs} more epochs, learning "
            f"rate {PRUNING_RATE:g}; in the first half of them by a cubic schedule, then with the zeros fixed"
        )
        found[options.pruned_output] = trainer.deliver(options.pruned_output, provenance, pruned=True)
    if options.classes is not None:
        write_classes(options.classes, found)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train LeNet on MNIST enlarged to 86 × 86 pixels; needs PyTorch.")
    parser.add_argument("folder", type=Path, metavar="MNIST_FOLDER", help="MNIST's four IDX files, plain or .gz")
    parser.add_argument("--output", type=Path, required=True, help="the model")
    parser.add_argument("--pruned-output", type=Path, help="the model with sparse layers in place of dense ones")
    parser.add_argument("--classes", type=Path, help="JSON: the classes that PyTorch predicts for the test images")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--pruning-epochs", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cuda", help="PyTorch's name of it")
    return parser.parse_args(arguments)


def check(torch: Any, options: argparse.Namespace) -> None:
    """Refuse what could not be done, before anything is computed.

    Raises
    ------
    UsageError, ResourceError
        An option cannot be so, or a file could not be written.
    """
    for name in ("epochs", "pruning_epochs"):
        if getattr(options, name) < 1:
            raise UsageError(f"--{name.replace('_', '-')} {getattr(options, name)} is not positive")
    if not 0 <= options.seed < 1 << 63:
        raise UsageError(f"--seed {options.seed} is not in 0 to 2^63 - 1")
    try:
        torch.empty(1, device=options.device)
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f"--device {options.device}: {str(error).partition(chr(10))[0]}") from error
    files = [path for path in (options.output, options.pruned_output, options.classes) if path is not None]
    if len({path.absolute() for path in files}) < len(files):
        raise UsageError("--output, --pruned-output and --classes must be different files")
    for path in files:
        if not path.absolute().parent.is_dir():
            raise ResourceError(f"{path}: its folder does not exist; make it first")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    options = parse(arguments)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what PyTorch asks for, to sum in a fixed order
    try:
        import torch
    except ImportError as error:
        print(f"train_lenet86: PyTorch is not there ({error}); install it: pip install torch", file=sys.stderr)
        return 2
    try:
        check(torch, options)
        run(torch, options)
    except SparseNNError as error:
        print(f"train_lenet86: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
