"""PyTorch's modules give what they give there, read module by module and through torch.export."""

from __future__ import annotations

import importlib
from collections import namedtuple
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from torch_modules import Called, check, settled

from sparsenn.engine import Session
from sparsenn.errors import InputError
from sparsenn.io import from_torch
from sparsenn.layers import Add, Conv2d, LayerNorm, Linear, Multiply, PerPosition, SparseLinear
from sparsenn.layers.activation import HardSwish, Mish, SiLU

torch = pytest.importorskip("torch", reason="needs PyTorch")
nn = torch.nn
functional, parametrize = nn.functional, nn.utils.parametrize
prune = importlib.import_module("torch.nn.utils.prune")

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore:Using padding='same'"
)


ROWS = {
    "layers": lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3, bias=False)),
    "normalised": lambda: nn.Sequential(
        nn.BatchNorm1d(6), nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.BatchNorm1d(8), nn.Linear(8, 3)
    ),
    "normalised last": lambda: nn.Sequential(nn.Linear(6, 3), nn.Sigmoid(), nn.BatchNorm1d(3, affine=False)),
    "activations": lambda: nn.Sequential(
        nn.Linear(6, 8), nn.ReLU6(), nn.Linear(8, 8), nn.Hardtanh(-0.3, 0.2), nn.Linear(8, 8), nn.Hardsigmoid()
    ),
    "leaky": lambda: nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(0.2), nn.Linear(8, 4), nn.PReLU(4), nn.Linear(4, 2)),
    "activations alone": lambda: nn.Sequential(nn.ReLU(), nn.Tanh(), nn.LeakyReLU()),
    "layer norms": lambda: nn.Sequential(
        *(nn.LayerNorm(6, bias=False), nn.Linear(6, 8), nn.LayerNorm(8, 0.1), nn.GELU()),
        *(nn.Linear(8, 5), nn.LayerNorm(5, elementwise_affine=False)),
    ),
    "nested": lambda: nn.Sequential(
        nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.Identity()), nn.Dropout(), nn.ReLU(), nn.Softmax(1)
    ),
}

IMAGES = {
    "lenet": lambda: nn.Sequential(
        *(nn.Conv2d(2, 4, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(4, 6, 3), nn.Sigmoid()),
        *(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(24, 3)),
    ),
    "normalised": lambda: nn.Sequential(
        *(nn.BatchNorm2d(2), nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.BatchNorm2d(4), nn.MaxPool2d(2)),
        *(nn.BatchNorm2d(4), nn.AvgPool2d(2), nn.BatchNorm2d(4), nn.Flatten(), nn.BatchNorm1d(36), nn.Linear(36, 3)),
    ),
    "grouped": lambda: nn.Sequential(
        nn.BatchNorm2d(2), nn.Conv2d(2, 4, (3, 2), (2, 1), groups=2), nn.LeakyReLU(), nn.Conv2d(4, 4, 2, dilation=2)
    ),
    "same": lambda: nn.Sequential(
        nn.Conv2d(2, 3, (2, 4), padding="same"), nn.Conv2d(3, 2, 2, padding="same", dilation=3)
    ),
    "valid": lambda: nn.Sequential(
        nn.Conv2d(2, 3, 3, padding="valid"), nn.Dropout2d(), nn.AdaptiveAvgPool2d((5, None))
    ),
    "adaptive": lambda: nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 3)),
    "slopes": lambda: nn.Sequential(
        *(nn.Conv2d(2, 3, 7), nn.MaxPool2d(2), nn.PReLU(3, -0.4), nn.MaxPool2d(2, 1), nn.PReLU(3)),
        *(nn.Flatten(), nn.PReLU(12, 0.1), nn.LeakyReLU(-0.3)),
    ),
    "ceiling": lambda: nn.Sequential(
        nn.MaxPool2d(3, 2, ceil_mode=True), nn.AvgPool2d(2, 3, ceil_mode=True), nn.Conv2d(2, 3, 2)
    ),
    "uncounted": lambda: nn.Sequential(
        nn.AvgPool2d(3, 1, 1, count_include_pad=False), nn.Conv2d(2, 3, 1), nn.AvgPool2d(3, 2, 1, divisor_override=4)
    ),
    "layer norms": lambda: nn.Sequential(
        nn.LayerNorm((2, 12, 12)), nn.Conv2d(2, 3, 3), nn.LayerNorm(10), nn.MaxPool2d(2), nn.LayerNorm((5, 5))
    ),
    "overlapping": lambda: nn.Sequential(nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(3, 1, 1), nn.ReLU()),
}

SEQUENCES = {
    "windows": lambda: nn.Sequential(
        *(nn.Conv1d(2, 4, 3, padding=1, stride=2), nn.BatchNorm1d(4), nn.ReLU(), nn.MaxPool1d(2), nn.AvgPool1d(2)),
        *(nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(4, 3)),
    ),
    "tokens": lambda: nn.Sequential(
        nn.LayerNorm(24), nn.Linear(24, 32), nn.GELU(), nn.Linear(32, 24, bias=False), nn.LayerNorm((2, 24))
    ),
    "windows, then tokens": lambda: nn.Sequential(
        nn.Conv1d(2, 4, 3), nn.ReLU(), nn.Linear(22, 5), nn.Sigmoid(), nn.Flatten(), nn.Linear(20, 3)
    ),
}

CASES = [
    *(pytest.param(make, (6,), id=f"rows-{name}") for name, make in ROWS.items()),
    *(pytest.param(make, (2, 12, 12), id=f"images-{name}") for name, make in IMAGES.items()),
    *(pytest.param(make, (2, 24), id=f"sequences-{name}") for name, make in SEQUENCES.items()),
]


@pytest.mark.parametrize(("make", "shape"), CASES)
def test_read_module_by_module(make: Callable[[], Any], shape: tuple[int, ...]) -> None:
    torch.manual_seed(1)
    check(settled(make()), shape)


@pytest.mark.parametrize(("make", "shape"), CASES)
def test_read_through_export(make: Callable[[], Any], shape: tuple[int, ...]) -> None:
    torch.manual_seed(1)
    module = settled(make())
    check(settled(Called(module)), shape)


def test_masks_of_pruning_are_applied() -> None:
    module = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 3))
    for name in ("weight", "bias"):
        prune.random_unstructured(module[0], name, amount=0.8)
    with torch.no_grad():
        module[0].weight_orig.mul_(2)  # what the next call sees, and the attribute `weight` does not
    for given in (module, Called(module).eval()):
        network = check(given, (20,))
        assert isinstance(network[0], SparseLinear)
        assert network[0].edges == 64
    check(prune.remove(module[0], "weight") and module, (20,), example=False)


def test_parametrised_weights_and_hooks() -> None:
    class Doubled(nn.Module):
        def forward(self, weight: Any) -> Any:
            return 2 * weight

    module = nn.Sequential(nn.Linear(6, 3), nn.Tanh())
    parametrize.register_parametrization(module[0], "weight", Doubled())
    check(module, (6,), example=False)
    check(hooked(), (6,))  # through torch.export, which sees hooks


def test_classes_that_keep_the_forward_of_their_base() -> None:
    class Layer(nn.Linear):
        """A layer that begins otherwise."""

        def __init__(self) -> None:
            super().__init__(6, 3)

    class Block(nn.Sequential):
        """A block that begins otherwise."""

        def __init__(self) -> None:
            super().__init__(Layer(), nn.ReLU())

    check(nn.Sequential(Block(), nn.Linear(3, 2)), (6,), example=False)


@pytest.mark.parametrize("layout", ["coo", "csr", "csc", "bsr", "bsc"])
@pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta", "ignore:Sparse invariant checks")
def test_sparse_parameters(layout: str) -> None:
    module = nn.Linear(8, 6)
    dense = torch.where(torch.rand(6, 8) < 0.3, torch.randn(6, 8), 0.0)
    blocks = ((2, 2),) if layout.startswith("bs") else ()
    module.weight = nn.Parameter(
        getattr(dense, f"to_sparse_{layout}")(*blocks) if layout != "coo" else dense.to_sparse()
    )
    layer = from_torch(nn.Sequential(module)).layers[0]
    assert isinstance(layer, SparseLinear)
    np.testing.assert_array_equal(layer.weights.to_scipy().toarray(), dense.numpy().T)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_parameters_of_other_types(dtype: str) -> None:
    module = nn.Sequential(nn.Linear(4, 3)).to(getattr(torch, dtype))
    layer = from_torch(module).layers[0]
    assert isinstance(layer, Linear)
    np.testing.assert_array_equal(layer.weights, module[0].weight.detach().float().numpy().T)


class Forward(nn.Module):
    """Functions, views, masks and arithmetic with constants, as people write them."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.first = nn.Linear(4 * 7 * 7, 8)
        self.second = nn.Linear(8, 3)
        self.register_buffer("mask", torch.rand(8, 4 * 7 * 7) > 0.7)

    def forward(self, rows: Any) -> Any:
        images = (rows.view(-1, 1, 14, 14) - 0.1307) / 0.3081
        images = functional.max_pool2d(functional.relu(self.norm(self.convolution(images))), 2)
        images = images * torch.arange(1.0, 5.0).view(1, 4, 1, 1)
        rows = images.view(images.size(0), -1)
        rows = functional.linear(rows, self.first.weight * self.mask, self.first.bias).clamp(-1, 2)
        rows = functional.dropout(rows, training=self.training)
        rows = 1 - torch.sigmoid(self.second(rows)) * 2
        rows = functional.leaky_relu(-rows @ torch.ones(3, 5) + torch.arange(5.0), 0.1)
        return rows.softmax(dim=-1)


def test_a_forward_as_people_write_them() -> None:
    torch.manual_seed(2)
    module = settled(Forward())
    for shape in ((196,), (1, 14, 14)):
        network = check(module, shape)
        assert network.image == (1, 14, 14)
        assert sum(isinstance(layer, SparseLinear) for layer in network) >= 1


def test_a_module_is_left_as_it_was() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.BatchNorm1d(3).eval(), nn.Dropout()))
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    from_torch(module)
    assert [part.training for part in module.modules()] == [True, True, True, False, True]
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())


def hooked() -> Any:
    module = nn.Sequential(nn.Linear(6, 3))
    module[0].register_forward_hook(lambda part, rows, found: 2 * found)
    return module


class Block(nn.Module):
    """A residual block, whose other branch fits it to its size where that changes."""

    def __init__(self, channels: int, filters: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, filters, 3, stride, 1, bias=False),
            nn.BatchNorm2d(filters),
            nn.ReLU6(),
            nn.Conv2d(filters, filters, 3, padding=1),
            nn.BatchNorm2d(filters),
        )
        fits = stride == 1 and channels == filters
        self.other = nn.Identity() if fits else nn.Conv2d(channels, filters, 1, stride)

    def forward(self, images: Any) -> Any:
        return torch.relu(self.body(images) + self.other(images))


def test_residual_networks() -> None:
    module = nn.Sequential(
        nn.ZeroPad2d((1, 0, 2, 1)),
        nn.Conv2d(2, 4, 3),
        Block(4, 4, 1),
        Block(4, 6, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
    network = check(settled(module), (2, 9, 10))
    assert sum(isinstance(layer, Add) for layer in network) == 2
    assert sum(isinstance(layer, Conv2d) for layer in network) == 7


def test_branches_that_are_joined() -> None:
    def joined(images: Any) -> Any:
        padded = functional.pad(images, (1, 1, 1, 1))
        pooled = functional.max_pool2d(padded, 3, 1)
        every = [images, pooled, torch.tanh(images) - 2 * images]
        return torch.cat([torch.cat(every, 1), torch.cat([pooled], 1)], dim=-3)

    network = check(Called(joined), (2, 6, 5))
    assert network.shapes[-1] == (8, 6, 5)


def unit(images: Any) -> Any:
    """A unit of ShuffleNet: half of the channels go on as they are, and both halves are mixed."""
    first, second = images.chunk(2, dim=1)
    both = torch.cat([first, functional.conv2d(second, torch.linspace(-1, 1, 4).view(2, 2, 1, 1)).relu()], 1)
    shape = both.shape
    return both.view(shape[0], 2, 2, *shape[2:]).transpose(1, 2).reshape(shape)


SELECTED: dict[str, tuple[Callable[[Any], Any], tuple[int, ...]]] = {
    "columns": (lambda rows: torch.cat([rows[:, 2:].tanh(), rows[:, ::3], rows[:, [4, 0]]], 1), (6,)),
    "one column": (lambda rows: rows.tanh()[:, 1:2] * rows[:, -1:], (6,)),
    "policy": (lambda rows: [each.tanh() for each in rows.sigmoid().split([2, 4], 1)][1], (6,)),
    "shuffled": (lambda images: unit(unit(images.tanh())), (4, 5, 6)),
    "operator": (lambda images: functional.channel_shuffle(images, 2).tanh(), (4, 5, 6)),
    "cropped": (lambda images: functional.max_pool2d(images.tanh()[:, :, 1:-1, 2:], 2), (4, 5, 6)),
    "inputs cropped": (lambda images: functional.max_pool2d(images[..., 1:4, :-1] / 2 + 1, 2), (4, 5, 6)),
    "every other": (lambda images: functional.avg_pool2d(images.tanh()[:, :, ::2, 1::3], 2), (4, 5, 6)),
    "focused": (lambda images: torch.cat([images[..., ::2, ::2], images[..., 1::2, ::2]], 1).tanh(), (4, 4, 6)),
    "channels": (lambda images: functional.max_pool2d(images.tanh()[:, [3, 0, 0, 1, 2]], 2), (4, 5, 6)),
    "last": (lambda images: images.tanh().permute(0, 2, 3, 1).sigmoid().permute(0, 3, 1, 2), (4, 5, 6)),
    "heads": (
        lambda images: torch.cat([images.tanh().flatten(2).sigmoid(), images.tanh()[:, :, 0].sigmoid()], 2),
        (4, 5, 6),
    ),
    "selected": (lambda images: images.tanh().select(2, 3).narrow(1, 1, 2), (4, 5, 6)),
    "narrowed": (lambda images: images.tanh().narrow(1, -2, 2).narrow(3, -3, 2), (4, 5, 6)),
    "rows": (lambda rows: rows[:].tanh(), (6,)),
}


@pytest.mark.parametrize(("function", "shape"), SELECTED.values(), ids=SELECTED)
def test_numbers_at_constant_places(function: Callable[[Any], Any], shape: tuple[int, ...]) -> None:
    check(Called(function), shape)


def test_shuffled_channels_are_folded_into_the_next_layer() -> None:
    shuffled = nn.Sequential(nn.Conv2d(4, 6, 3), nn.ReLU(), nn.ChannelShuffle(3), nn.Conv2d(6, 5, 3), nn.ReLU())
    network = check(Called(shuffled), (4, 8, 7))
    assert [type(layer) for layer in network] == [Conv2d, Conv2d]


class Gated(nn.Module):
    """A feed-forward block of transformers, whose hidden values are the product of two branches."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(6, 10), nn.Linear(6, 10, bias=False), nn.Linear(10, 6)

    def forward(self, rows: Any) -> Any:
        return rows + self.down(functional.silu(self.gate(rows)) * self.up(rows))


def test_a_gated_mlp() -> None:
    network = check(nn.Sequential(Gated(), Gated()), (6,))
    assert sum(isinstance(layer, Multiply) for layer in network) == 2


class Perceptron(nn.Module):
    """What follows attention in a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 32), nn.Linear(32, 8)
        prune.random_unstructured(self.up, "weight", amount=0.9)

    def forward(self, tokens: Any) -> Any:
        return tokens + self.down(functional.gelu(self.up(self.norm(tokens))))


def test_the_perceptron_of_a_transformer() -> None:
    network = check(nn.Sequential(Perceptron(), Perceptron(), nn.LayerNorm(8)).eval(), (5, 8))
    kinds = [LayerNorm, PerPosition, PerPosition, Add]
    assert [type(layer) for layer in network] == [*kinds, *kinds, LayerNorm]
    assert isinstance(network[1].layer, SparseLinear)


@pytest.mark.parametrize(
    ("gate", "activation"),
    [
        (lambda rows: rows * torch.sigmoid(rows), SiLU()),
        (lambda rows: functional.sigmoid(rows) * rows, SiLU()),
        (lambda rows: rows * functional.hardsigmoid(rows), HardSwish()),
        (lambda rows: rows * torch.tanh(functional.softplus(rows)), Mish()),
    ],
)
def test_gates_of_their_own_numbers_are_activations(gate: Callable[[Any], Any], activation: Any) -> None:
    network = check(Called(nn.Sequential(nn.Linear(6, 4), Called(gate))).eval(), (6,))
    assert [(type(layer), layer.activation) for layer in network] == [(Linear, activation)]
    network = check(Called(nn.Sequential(nn.Conv2d(2, 4, 3), Called(gate))).eval(), (2, 5, 5))
    assert [(type(layer), layer.activation) for layer in network] == [(Conv2d, activation)]


EXAMPLE = torch.zeros(4, 3)
PICTURE = torch.zeros(4, 2, 7, 7)

REFUSED: dict[str, tuple[Callable[[], Any], Any, str]] = {
    "unknown": (
        lambda: nn.Sequential(nn.Linear(3, 3), nn.Softshrink()),
        None,
        r"1 \(Softshrink\): has no counterpart in sparsenn; give a module without it; ",
    ),
    "log": (lambda: nn.LogSoftmax(0), EXAMPLE, "a softmax over dimension 0"),
    "hooks": (hooked, None, r"0 \(Linear\): has a forward of its own: give .* from_torch\(module, example\)"),
    "norm of others": (lambda: nn.Sequential(nn.LayerNorm((2, 7))), PICTURE, r"sizes \(2, 7\); the input is"),
    "reflected": (lambda: nn.Conv2d(2, 1, 3, padding=1, padding_mode="reflect"), PICTURE, "pads by 'reflect'"),
    "own statistics": (lambda: nn.BatchNorm2d(2, track_running_stats=False), PICTURE, "each batch's own mean"),
    "dilated pool": (lambda: nn.MaxPool2d(2, dilation=2), PICTURE, r"a dilation of 2"),
    "indices": (lambda: nn.MaxPool2d(2, return_indices=True), PICTURE, "also gives indices"),
    "ceiling": (lambda: nn.AvgPool2d(4, 3, 1, ceil_mode=True), PICTURE, "ceil_mode"),
    "divided": (lambda: nn.AvgPool2d(2, ceil_mode=True, divisor_override=3), PICTURE, "a number of its own"),
    "uneven": (lambda: nn.AdaptiveAvgPool2d(3), PICTURE, "windows of several sizes"),
    "softmax of images": (lambda: nn.Softmax(1), PICTURE, "takes the softmax of images"),
    "softmax of pixels": (lambda: nn.Softmax(3), PICTURE, "a softmax over dimension 3"),
    "some flattened": (lambda: nn.Flatten(2), PICTURE, "flattens dimensions 2 to -1"),
    "not all flattened": (lambda: nn.Flatten(1, 2), PICTURE, "flattens dimensions 1 to 2"),
    **{
        f"rows taken for channels by {part}": (lambda part=part: part, PICTURE[:, 0], "takes tensors of 4 axes")
        for part in (nn.AdaptiveAvgPool2d(1), nn.AvgPool2d((3, 1), 1, (1, 0)), nn.MaxPool2d((3, 1), 1, (1, 0)))
    },
    "not finite": (lambda: nn.Sequential(nn.Linear(3, 1)), None, r"0 \(Linear\): the weights hold NaN"),
}


FUNCTIONS: dict[str, tuple[Callable[[Any], Any], Any, str]] = {
    "rows put together": (lambda rows: torch.cat([rows, rows.relu()]), EXAMPLE, "concatenates them along axis 0"),
    "channels padded": (
        lambda image: functional.pad(image, (0, 0, 0, 0, 1, 1)),
        PICTURE,
        r"pads by \(0, 0, 0, 0, 1, 1",
    ),
    "reflected rim": (lambda image: functional.pad(image, (1,) * 4, "reflect"), PICTURE, "mode 'reflect'"),
    "one factor for a row": (
        lambda rows: rows * functional.linear(rows, torch.ones(1, 3)),
        EXAMPLE,
        r"aten.mul.Tensor\): it multiplies 3 and 1",
    ),
    "joined rows": (lambda rows: rows.view(2, 6), EXAMPLE, "mixes rows"),
    "from the left": (lambda rows: torch.ones(4, 4) @ rows, EXAMPLE, "the number of rows of the example"),
    "by row": (lambda rows: rows * torch.ones(4, 1), EXAMPLE, "the number of rows of the example"),
    "depends on data": (lambda rows: rows if rows.sum() > 0 else -rows, EXAMPLE, "torch.export cannot make"),
}
REFUSED |= {name: (partial(Called, function), *rest) for name, (function, *rest) in FUNCTIONS.items()}


@pytest.mark.parametrize(("make", "example", "message"), REFUSED.values(), ids=REFUSED)
def test_what_no_layer_computes_is_refused(make: Callable[[], Any], example: Any, message: str) -> None:
    module = make()
    if message.endswith("hold NaN"):
        nn.init.constant_(module[0].weight, float("nan"))
    with pytest.raises(InputError, match=message) as raised:
        from_torch(module, example)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(24, 3)), (1, 4, 6)),
        (nn.Sequential(nn.Conv1d(2, 3, 3), nn.Flatten(), nn.Linear(12, 3)), (2, 6)),
        (nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(24, 3)), (2, 4, 6)),
        (Called(nn.Sequential(nn.Flatten(), nn.Linear(24, 3))), (2, 3, 4)),
    ],
)
def test_a_session_takes_what_the_module_takes(module: Any, shape: tuple[int, ...]) -> None:
    inputs = torch.rand(5, *shape)
    expected = module(inputs).detach()
    examples = [inputs] if isinstance(module, Called) or "Conv" in str(module) else [None, inputs]
    for example in examples:
        session = Session(from_torch(module, example), device="cpu")
        for given in (inputs, [inputs], inputs.flatten(1)):
            found = session(given)
            assert isinstance(found, torch.Tensor)
            torch.testing.assert_close(found, expected)
        torch.testing.assert_close(session(inputs[0]), expected[:1])


class Policy(nn.Module):
    """Numbers and an image in; an action, a value and a mask out, in the form that `pack` makes of them."""

    def __init__(self, pack: Any) -> None:
        super().__init__()
        self.pack, self.conv, self.linear = pack, nn.Conv2d(2, 3, 3), nn.Linear(3, 5)
        self.hidden, self.heads = nn.Linear(17, 6), nn.ModuleList([nn.Linear(6, 4), nn.Linear(6, 1)])

    def forward(self, obs: Any, image: Any) -> Any:
        seen = self.conv(image).relu()
        hidden = self.hidden(torch.cat([self.linear(obs).tanh(), seen.flatten(1)], 1)).relu()
        return self.pack(*(head(hidden) for head in self.heads), seen)


Outputs = namedtuple("Outputs", "action value mask")


@pytest.mark.parametrize(
    ("pack", "names"),
    [
        (lambda *outputs: outputs, ["output_0", "output_1", "output_2"]),
        (lambda *outputs: dict(zip("abc", outputs, strict=True)), ["a", "b", "c"]),
        (lambda action, value, mask: (action, action), ["output_0", "output_1"]),
        (Outputs, ["action", "value", "mask"]),
    ],
)
def test_several_inputs_and_outputs(pack: Any, names: list[str]) -> None:
    torch.manual_seed(0)
    module = Policy(pack)
    inputs = {"obs": torch.randn(5, 3), "image": torch.randn(5, 2, 4, 4)}
    with torch.no_grad():
        given = module.eval()(**inputs)
    wanted = list(given.values() if isinstance(given, dict) else given)
    for example in (tuple(inputs.values()), dict(reversed(inputs.items()))):
        network = from_torch(module, example)
        assert set(network.named_inputs or ()) == set(inputs)
        found = Session(network, device="cpu")(inputs)
        assert list(found) == names
        for each, want in zip(found.values(), wanted, strict=True):
            torch.testing.assert_close(each, want, rtol=1e-5, atol=1e-5)
