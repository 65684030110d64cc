"""Networks of the kinds that people prune, small, of PyTorch's modules, and the ONNX files that it writes of them."""

from __future__ import annotations

import io
import itertools
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

__all__ = ["NETWORKS", "Block", "Golden", "Rows", "numbers", "pruned", "torchvision_model"]

Rows = Callable[[np.random.Generator, int], np.ndarray]
"""Makes a number of rows of an input."""

LEFT = 0.2
"""The share of weights that are not zero, of networks that are pruned."""

OPSET = 17

SETTLING_ROWS = 4
"""Images that normalisations of torchvision's models have seen."""


@dataclass(frozen=True, eq=False)
class Golden:
    """A network with its inputs.

    Parameters
    ----------
    make : returns the module, whose arguments are the inputs in their order.
    inputs : rows of each input, by its name.
    outputs : names of the outputs.
    is_sparse : whether the fully connected layers, or other weights of matrices, are pruned.
    """

    make: Callable[[], nn.Module]
    inputs: Mapping[str, Rows]
    outputs: tuple[str, ...] = ("y",)
    is_sparse: bool = False

    def module(self) -> nn.Module:
        """Return the module, its weights drawn anew and pruned."""
        torch.manual_seed(0)
        module = self.make().eval()
        return pruned(module, LEFT) if self.is_sparse else module

    def onnx(self, module: nn.Module) -> bytes:
        """Return the module as an ONNX file, whose first axes are rows, as many as come."""
        drawn = self.rows(2)
        buffer = io.BytesIO()
        torch.backends.mha.set_fastpath_enabled(False)  # ONNX files have no such operator
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                module,
                tuple(map(torch.from_numpy, drawn.values())),
                buffer,
                dynamo=False,
                opset_version=OPSET,
                input_names=list(drawn),
                output_names=list(self.outputs),
                dynamic_axes={name: {0: "rows"} for name in (*drawn, *self.outputs)},
            )
        return buffer.getvalue()

    def rows(self, count: int) -> dict[str, np.ndarray]:
        """Draw rows of all inputs."""
        rng = np.random.default_rng(count)
        return {name: rows(rng, count) for name, rows in self.inputs.items()}


def pruned(module: nn.Module, left: float) -> nn.Module:
    """Set weights of `Linear` and `LSTM` modules, and of convolutions of more than a channel, to zero at random."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for each in module.modules():
            if isinstance(each, nn.Linear | nn.Conv2d | nn.MultiheadAttention):
                for name, weights in each.named_parameters(recurse=False):
                    if weights.dim() in (2, 4) and weights.shape[1] > 1 and "bias" not in name:
                        weights *= torch.rand(weights.shape, generator=generator) < left
    return module


def numbers(*shape: int) -> Rows:
    return lambda rng, count: rng.normal(size=(count, *shape)).astype(np.float32)


def whole(below: int, *shape: int) -> Rows:
    return lambda rng, count: rng.integers(0, below, (count, *shape))


def layers(*widths: int, activation: type[nn.Module]) -> nn.Sequential:
    made: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        made += [nn.Linear(inputs, outputs), activation()]
    return nn.Sequential(*made[:-1])


class Policy(nn.Module):
    """Means and deviations of actions, which one layer computes side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = layers(48, 256, 256, 24, activation=nn.SiLU)

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, deviation = torch.split(self.layers(obs), 12, dim=1)
        return torch.tanh(mean), deviation.exp()


class Masked(nn.Module):
    """An action's value where a mask permits it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = layers(40, 128, 128, 16, activation=nn.ReLU)

    def forward(self, obs: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.layers(obs) * mask


class Gate(nn.Module):
    """A factor for each channel, of the means of all."""

    def __init__(self, channels: int, inner: nn.Module, outer: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, 8, 1), inner, nn.Conv2d(8, channels, 1), outer
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images * self.layers(images)


class Inverted(nn.Module):
    """A block of MobileNetV3 or EfficientNet: wider, depthwise, a gate, narrower, and a branch around it all."""

    def __init__(self, activation: type[nn.Module], inner: nn.Module, outer: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(16, 48, 1, bias=False), nn.BatchNorm2d(48), activation()),
            *(nn.Conv2d(48, 48, 3, padding=1, groups=48, bias=False), nn.BatchNorm2d(48), activation()),
            *(Gate(48, inner, outer), nn.Conv2d(48, 16, 1, bias=False), nn.BatchNorm2d(16)),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images + self.layers(images)


def classifier(block: nn.Module) -> nn.Module:
    stem = nn.Sequential(nn.Conv2d(3, 16, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(16), nn.Hardswish())
    return nn.Sequential(stem, block, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))


class Detector(nn.Module):
    """Two scales, the finer one beside the coarser one enlarged; boxes and classes of each."""

    def __init__(self) -> None:
        super().__init__()
        self.fine = nn.Sequential(nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.SiLU())
        self.coarse = nn.Sequential(nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.SiLU())
        self.enlarged = nn.Upsample(scale_factor=2, mode="nearest")
        self.both = nn.Sequential(nn.Conv2d(48, 16, 3, padding=1), nn.SiLU())
        self.boxes, self.classes = nn.Conv2d(16, 4, 1), nn.Conv2d(16, 5, 1)

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        fine = self.fine(images)
        both = self.both(torch.cat([fine, self.enlarged(self.coarse(fine))], dim=1))
        return self.boxes(both).flatten(2), self.classes(both).flatten(2).sigmoid()


class UNet(nn.Module):
    """Images as large as they came, of coarse ones and of themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU())
        self.inner = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU())
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.last = nn.Conv2d(16, 2, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        down = self.down(images)
        return self.last(torch.cat([down, self.up(self.inner(down))], dim=1))


class Block(nn.Module):
    """Attention and two layers, each with a sum around it, for (rows, places, width).

    Parameters
    ----------
    is_last : whether normalisations come after the sums, as of BERT.
    is_decoder : whether a layer gates the hidden one, and places attend to those before.
    """

    def __init__(self, width: int, hidden: int, heads: int, is_last: bool = False, is_decoder: bool = False) -> None:
        super().__init__()
        self.heads, self.is_last = heads, is_last
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.gate = nn.Linear(width, hidden) if is_decoder else None

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        first, second = self.norms
        if self.is_last:
            tokens = first(tokens + self._attention(tokens))
            return second(tokens + self._layers(tokens))
        tokens = tokens + self._attention(first(tokens))
        return tokens + self._layers(second(tokens))

    def _attention(self, tokens: torch.Tensor) -> torch.Tensor:
        shape = (*tokens.shape[:2], self.heads, tokens.shape[2] // self.heads)
        heads = (each(tokens).view(shape).transpose(1, 2) for each in (self.query, self.key, self.value))
        mixed = nn.functional.scaled_dot_product_attention(*heads, is_causal=self.gate is not None)
        return self.out(mixed.transpose(1, 2).flatten(2))

    def _layers(self, tokens: torch.Tensor) -> torch.Tensor:
        if self.gate is not None:
            return self.down(nn.functional.silu(self.gate(tokens)) * self.up(tokens))
        return self.down(nn.functional.gelu(self.up(tokens)))


class Encoder(nn.Module):
    """A block on places of an image, and a head on their mean; or on words, and a head on the first."""

    def __init__(self, outputs: int, words: int = 0) -> None:
        super().__init__()
        self.words = nn.Embedding(words, 192) if words else None
        self.block = Block(192, 768, 3, is_last=words > 0)
        self.head = nn.Linear(192, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.words is None:
            return self.head(self.block(x).mean(dim=1))
        return self.head(torch.tanh(self.block(self.words(x))[:, 0]))


class Recurrent(nn.Module):
    """The last state of an LSTM, and a head that is wide and sparse."""

    def __init__(self) -> None:
        super().__init__()
        self.states = nn.LSTM(12, 64, batch_first=True)
        self.head = layers(64, 512, 10, activation=nn.ReLU)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states, _ = self.states(x)
        return self.head(states[:, -1])


class Tabular(nn.Module):
    """Columns of numbers beside columns of categories, each of which has an embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(20, 8) for _ in range(3))
        self.layers = layers(10 + 3 * 8, 256, 128, 2, activation=nn.ReLU)

    def forward(self, numbers: torch.Tensor, categories: torch.Tensor) -> torch.Tensor:
        embedded = [each(categories[:, place]) for place, each in enumerate(self.embeddings)]
        return self.layers(torch.cat([numbers, *embedded], dim=1))


def drawn(name: str) -> nn.Module:
    """Return a model of torchvision with random weights."""
    import torchvision

    auxiliary = {"aux_logits": False, "init_weights": False} if name in ("googlenet", "inception_v3") else {}
    model: nn.Module = getattr(torchvision.models, name)(weights=None, **auxiliary)
    return model


def torchvision_model(name: str, left: float = 1.0, pixels: int = 224) -> nn.Module:
    """Return a model, pruned but for depthwise convolutions, whose normalisations have means of random images."""
    module = drawn(name).train()
    with torch.no_grad():
        for each in module.modules():
            is_depthwise = isinstance(each, nn.Conv2d) and each.weight.shape[1] == 1
            if left < 1 and isinstance(each, nn.Linear | nn.Conv2d) and not is_depthwise:
                sizes = each.weight.abs()
                each.weight[sizes <= sizes.flatten().kthvalue(int((1 - left) * sizes.numel())).values] = 0
            if isinstance(each, nn.BatchNorm2d):
                each.momentum = None  # running means are those of all images so far
        module(torch.randn(SETTLING_ROWS, 3, pixels, pixels))
    return module


NETWORKS = {
    "policy of ELU": Golden(
        lambda: layers(48, 256, 256, 12, activation=nn.ELU), {"obs": numbers(48)}, ("actions",), is_sparse=True
    ),
    "policy of SiLU, split": Golden(Policy, {"obs": numbers(48)}, ("mean", "deviation"), is_sparse=True),
    "policy with a mask": Golden(Masked, {"obs": numbers(40), "mask": numbers(16)}, ("values",), is_sparse=True),
    "block of MobileNetV3": Golden(
        lambda: classifier(Inverted(nn.Hardswish, nn.ReLU(), nn.Hardsigmoid())), {"images": numbers(3, 32, 32)}
    ),
    "block of EfficientNet": Golden(
        lambda: classifier(Inverted(nn.SiLU, nn.SiLU(), nn.Sigmoid())), {"images": numbers(3, 32, 32)}
    ),
    "detector": Golden(Detector, {"images": numbers(3, 32, 32)}, ("boxes", "classes")),
    "U-Net": Golden(UNet, {"images": numbers(3, 32, 32)}),
    "block of ViT": Golden(lambda: Encoder(10), {"x": numbers(65, 192)}, is_sparse=True),
    "block of BERT": Golden(lambda: Encoder(2, words=100), {"ids": whole(100, 64)}, is_sparse=True),
    "LSTM with a sparse head": Golden(Recurrent, {"x": numbers(20, 12)}, is_sparse=True),
    "table with embeddings": Golden(Tabular, {"numbers": numbers(10), "categories": whole(20, 3)}, is_sparse=True),
}
