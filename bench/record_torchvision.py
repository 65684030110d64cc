"""Record what a session takes for torchvision's models that classify images, beside ONNX Runtime and PyTorch.

Usage: python bench/record_torchvision.py [--only NAME …] [--seconds S] [--machine NAME]

Each model has random weights, all or the largest tenth of each layer, and is written as an ONNX file.
Outputs are compared first. Writes bench/results/<machine>/torchvision.json; the exit code is 1 if outputs differ.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from golden_networks import Golden, numbers
from record_golden import COLUMNS, TOLERANCE, recorded
from results_file import results_path, write_results
from torch import nn

FAMILIES = (
    *("alexnet", "convnext_tiny", "densenet121", "efficientnet_b0", "efficientnet_v2_s", "googlenet", "inception_v3"),
    *("maxvit_t", "mnasnet0_5", "mobilenet_v2", "mobilenet_v3_small", "regnet_y_400mf", "resnet18", "resnext50_32x4d"),
    *("shufflenet_v2_x0_5", "squeezenet1_0", "swin_t", "vgg11", "vit_b_16", "wide_resnet50_2"),
)
PIXELS = 224
LEFT = 0.1
ROWS = (1, 16)
SETTLING_ROWS = 4


def drawn(name: str) -> nn.Module:
    """Return a model of torchvision with random weights."""
    import torchvision

    auxiliary = {"aux_logits": False, "init_weights": False} if name in ("googlenet", "inception_v3") else {}
    model: nn.Module = getattr(torchvision.models, name)(weights=None, **auxiliary)
    return model


def made(name: str, left: float = 1.0, spares_depthwise: bool = False) -> nn.Module:
    """Return a model, pruned to a share of weights, whose normalisations have the means of images of random numbers."""
    module = drawn(name).train()
    with torch.no_grad():
        for each in module.modules():
            is_depthwise = isinstance(each, nn.Conv2d) and each.weight.shape[1] == 1
            if left < 1 and isinstance(each, nn.Linear | nn.Conv2d) and not (spares_depthwise and is_depthwise):
                sizes = each.weight.abs()
                each.weight[sizes <= sizes.flatten().kthvalue(int((1 - left) * sizes.numel())).values] = 0
            if isinstance(each, nn.BatchNorm2d):
                each.momentum = None  # running means are those of all images so far
        module(torch.randn(SETTLING_ROWS, 3, PIXELS, PIXELS))
    return module


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(description="Record torchvision's models beside ONNX Runtime and PyTorch.")
    parser.add_argument("--only", nargs="+", choices=FAMILIES, default=FAMILIES, metavar="NAME")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each network and number of rows")
    parser.add_argument("--machine", help="name of the folder of results; made of CPU and GPU unless given")
    options = parser.parse_args(arguments)
    torch.backends.mha.set_fastpath_enabled(False)  # ONNX files have no such operator
    rows: list[dict[str, Any]] = []
    for name in options.only:
        for left in (1.0, LEFT):
            golden = Golden(partial(made, name, left), {"x": numbers(3, PIXELS, PIXELS)})
            title = f"{name}, {left:.0%} of its weights" if left < 1 else name
            rows += recorded(title, golden, options.seconds, ROWS)
    write_results(
        results_path("torchvision", folder=options.machine),
        table="torchvision",
        title="torchvision's models that classify images, random weights, on a CPU",
        columns=COLUMNS,
        rows=rows,
        configuration={"rows": list(ROWS), "seconds": options.seconds, "pixels": PIXELS},
        notes=[
            f"Images of {PIXELS} × {PIXELS} pixels of random numbers. Medians of warm calls, in blocks of each library "
            "in turns, rows and outputs in host memory, with its own number of threads. Outputs were "
            "compared first. The kernel onnxruntime is ONNX Runtime with the whole network. Pruned models "
            "have the largest tenth of the weights of each layer.",
        ],
    )
    wrong = [row for row in rows if not row["difference"] <= TOLERANCE]
    for row in wrong:
        print(f"record_torchvision: {row['key']}: outputs differ by {row['difference']:.1e}", file=sys.stderr)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
