#!/usr/bin/env python3
"""Train the example network for images, LeNet on MNIST enlarged to 86 × 86 pixels, and write it as models.

    tools/train_lenet86.py MNIST_FOLDER --output datasets/lenet86.h5 [--pruned-output datasets/lenet86-pruned.h5]
        [--classes FILE.json] [--epochs N] [--pruning-epochs N] [--seed S] [--device cuda]

The folder holds MNIST's four IDX files as .gz. The network: convolution of 1 to 4 channels, 7 × 7, ReLU,
max-pool 2 × 2, convolution of 4 to 16 channels, 7 × 7, ReLU, max-pool 2 × 2, dense 4624 to 32, ReLU, dense 32 to 10,
softmax. It is trained by Adam on the cross-entropy, the learning rate following half a cosine down to zero.

For the pruned model training goes on from there. In the first half of its epochs the smallest weights of each dense
layer are set to zero, more and more of them along the cubic schedule of Zhu and Gupta ("To prune, or not to prune",
2017), until 90 % are; in the second half those that are left are tuned.

Both files say how they were made, and the accuracy on the 10,000 test images as PyTorch measured it; --classes gets the
checksum, the accuracy and the classes that PyTorch predicted of each.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from pathlib import Path

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what PyTorch asks for, to sum in a fixed order
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from torch import nn

import sparsenn
from sparsenn.io import read_idx, write_model
from sparsenn.training import resize_bilinear

SIDE, BATCH, TEST_BATCH = 86, 128, 2000
RATE, PRUNING_RATE = 2e-3, 1e-3

PRUNED = 0.9
"""Share of a dense layer's weights that the pruned model does without."""

MASK_STEPS = 50
"""Updates from one choice of the smallest weights to the next."""


def read_images(folder: Path, name: str, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images of MNIST's `train` or `t10k`, enlarged, and their labels, on the device."""
    images, labels = (read_idx(folder / f"{name}-{file}-ubyte.gz") for file in ("images-idx3", "labels-idx1"))
    enlarged = torch.from_numpy(resize_bilinear(images[:, None], SIDE, SIDE))
    return enlarged.to(device), torch.from_numpy(labels.astype(np.int64)).to(device)


def train(
    network: nn.Sequential,
    images: torch.Tensor,
    labels: torch.Tensor,
    order: torch.Generator,
    epochs: int,
    rate: float,
    share: float = 0.0,
) -> None:
    """Train; dense layers lose this share of their weights in the first half, and the zeros stay to the end."""
    half = epochs * -(-len(images) // BATCH) // 2
    descent = torch.optim.Adam(network.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(descent, epochs * -(-len(images) // BATCH))
    dense = [module.weight.data for module in network if isinstance(module, nn.Linear)]
    masks = [torch.ones_like(weights) for weights in dense]
    step = 0
    for epoch in range(1, epochs + 1):
        total = torch.zeros((), device=images.device)
        for picked in torch.randperm(len(images), generator=order).to(images.device).split(BATCH):
            if step == half or (step < half and step % MASK_STEPS == 0):
                zeros = share * (1 - (1 - step / half) ** 3)
                for weights, mask in zip(dense, masks, strict=True):
                    smallest = weights.abs().flatten().argsort(stable=True)[: round(zeros * weights.numel())]
                    mask.fill_(1).view(-1)[smallest] = 0
            descent.zero_grad()
            loss = nn.functional.cross_entropy(network(images[picked]), labels[picked])
            loss.backward()
            descent.step()
            schedule.step()
            for weights, mask in zip(dense, masks, strict=True):
                weights.mul_(mask)
            total += loss.detach() * len(picked)
            step += 1
        print(f"epoch {epoch} of {epochs}: loss {float(total) / len(images):.5f}", flush=True)


@torch.no_grad()
def deliver(
    path: Path, network: nn.Sequential, images: torch.Tensor, labels: torch.Tensor, provenance: dict[str, str]
) -> dict[str, object]:
    """Measure the accuracy, write the model with it, and return what the file of classes says of it."""
    classes = torch.cat([network(batch).argmax(1) for batch in images.split(TEST_BATCH)])
    accuracy = float((classes == labels).double().mean())
    measured = {"test accuracy": f"{accuracy:.4f}", "test images": str(len(classes)), "measured by": "PyTorch"}
    found = sparsenn.from_torch(nn.Sequential(*network, nn.Softmax(1)).cpu(), torch.zeros(1, 1, SIDE, SIDE))
    network.to(images.device)
    write_model(path, sparsenn.Model(found, "cross_entropy", True, provenance | measured, "bilinear"))
    print(f"{path}: {accuracy:.2%} of {len(classes):,} test images", flush=True)
    checksum = hashlib.sha256(path.read_bytes()).hexdigest()
    return {"sha256": checksum, "accuracy": accuracy, "classes": classes.tolist()}


def main() -> None:
    """Train, write, prune, write."""
    parser = argparse.ArgumentParser(description="Train LeNet on MNIST enlarged to 86 × 86 pixels; needs PyTorch.")
    parser.add_argument("folder", type=Path, metavar="MNIST_FOLDER", help="MNIST's four IDX files as .gz")
    parser.add_argument("--output", type=Path, required=True, help="the model")
    parser.add_argument("--pruned-output", type=Path, help="the model with sparse layers in place of dense ones")
    parser.add_argument("--classes", type=Path, help="JSON: the classes that PyTorch predicts for the test images")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--pruning-epochs", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cuda", help="PyTorch's name of it")
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    images, labels = read_images(options.folder, "train", options.device)
    test = read_images(options.folder, "t10k", options.device)
    order = torch.Generator().manual_seed(options.seed)
    network = nn.Sequential(
        *(nn.Conv2d(1, 4, 7), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 16, 7), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(16 * 17 * 17, 32), nn.ReLU(), nn.Linear(32, 10)),
    ).to(options.device)
    device = torch.cuda.get_device_name(images.device) if images.is_cuda else options.device
    provenance = {
        "data": f"MNIST: {len(images):,} training images, enlarged from 28 × 28 pixels (bilinear)",
        "made by": f"tools/train_lenet86.py of sparsenn {sparsenn.__version__}, PyTorch {torch.__version__}, {device}",
        "training": f"Adam, {options.epochs} epochs of batches of {BATCH}, learning rate {RATE:g}, cosine schedule",
        "seed": str(options.seed),
    }
    train(network, images, labels, order, options.epochs, RATE)
    found = {options.output.name: deliver(options.output, network, *test, provenance)}
    if options.pruned_output is not None:
        train(network, images, labels, order, options.pruning_epochs, PRUNING_RATE, PRUNED)
        provenance["pruning"] = (
            f"{PRUNED:.0%} of each dense layer's weights, by magnitude: {options.pruning_epochs} more epochs, learning "
            f"rate {PRUNING_RATE:g}; in the first half of them by a cubic schedule, then with the zeros fixed"
        )
        found[options.pruned_output.name] = deliver(options.pruned_output, network, *test, provenance)
    if options.classes is not None:
        options.classes.write_text(json.dumps(found, separators=(",", ":")) + "\n", encoding="ascii")


if __name__ == "__main__":
    main()
