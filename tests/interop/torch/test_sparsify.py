"""Pruned modules of PyTorch models, computed by sessions."""

from __future__ import annotations

import copy
import importlib
import io
import pickle
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

import sparsenn
from sparsenn.errors import UsageError
from sparsenn.torch import desparsify, sparsify

torch = pytest.importorskip("torch", reason="needs PyTorch")
nn = torch.nn
prune = importlib.import_module("torch.nn.utils.prune")
make_fx = importlib.import_module("torch.fx.experimental.proxy_tensor").make_fx
is_slower = importlib.import_module("sparsenn.interop.torch.timing").is_slower

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


class Decoder(nn.Module):
    """A gated block with causal attention and a head that is tied to the embedding, as language models have."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(24, 16)
        self.query, self.key, self.value, self.out = (nn.Linear(16, 16, bias=False) for _ in range(4))
        self.gate, self.up, self.down = nn.Linear(16, 40), nn.Linear(16, 40), nn.Linear(40, 16)
        self.head = nn.Linear(16, 24, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Any, scale: float = 1.0) -> Any:
        hidden = self.embedding(tokens)
        heads = [each(hidden).unflatten(-1, (2, 8)).transpose(1, 2) for each in (self.query, self.key, self.value)]
        mixed = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        hidden = hidden + self.out(mixed.transpose(1, 2).flatten(2))
        hidden = hidden + self.down(nn.functional.silu(self.gate(hidden)) * self.up(hidden))
        return self.head(hidden) * scale


def encoder() -> Any:
    return nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)


def convolutional() -> Any:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, stride=2, padding="valid", dilation=2, groups=2),
        nn.Conv2d(8, 8, 3, padding="same"),
        nn.Conv2d(8, 8, 3, padding=1, padding_mode="reflect"),
        nn.Flatten(),
        nn.Linear(32, 5),
    )


MODELS: dict[str, tuple[Callable[[], Any], Callable[[], Any], int]] = {
    "encoder": (encoder, lambda: torch.randn(3, 5, 16), 2),
    "decoder": (Decoder, lambda: torch.randint(24, (3, 5)), 8),
    "convolutional": (convolutional, lambda: torch.randn(3, 3, 8, 8), 4),
}


def pruned(model: Any, density: float = 0.2) -> Any:
    """Return a model in evaluation mode, of whose weights a share is left."""
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Linear | nn.Conv2d):
                module.weight.mul_(torch.rand_like(module.weight) < density)
    return model.eval()


def close(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def count(model: Any) -> int:
    return sum(type(module).__name__.startswith("Sparse") for module in model.modules())


SLOWER = "sparsenn.interop.torch.runner.is_slower"


@pytest.fixture(autouse=True)
def sessions_are_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have sessions seem faster, on models of the same random weights in every run."""
    torch.manual_seed(3)
    monkeypatch.setattr(SLOWER, lambda *calls: False)


@pytest.fixture(params=MODELS)
def case(request: pytest.FixtureRequest, sessions_are_faster: None) -> tuple[Any, Any, int]:
    """A pruned model, inputs, and how many modules are to be replaced."""
    make, inputs, replaced = MODELS[request.param]
    return pruned(make()), inputs(), replaced


def test_models_compute_the_same(case: tuple[Any, Any, int]) -> None:
    model, inputs, replaced = case
    before = copy.deepcopy(model)
    names = {name: type(module) for name, module in model.named_modules()}
    with torch.no_grad():
        expected = model(inputs)
        assert sparsify(model) is model
        assert count(model) == replaced
        close(model(inputs), expected)
        close(model(inputs[:1]), expected[:1])
        assert model(inputs[:0]).shape == expected[:0].shape
        with torch.inference_mode():
            close(model(inputs), expected)
        assert model.state_dict().keys() == before.state_dict().keys()
        for name, tensor in before.state_dict().items():
            assert torch.equal(model.state_dict()[name], tensor)
        assert desparsify(model) is model
        assert {name: type(module) for name, module in model.named_modules()} == names
        assert all(
            vars(module).keys() == vars(before.get_submodule(name)).keys() for name, module in model.named_modules()
        )
        assert not any(module._forward_pre_hooks for module in model.modules())
        assert torch.equal(model(inputs), expected)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_without_a_graph_break(case: tuple[Any, Any, int], backend: str) -> None:
    model, inputs, _ = case
    with torch.no_grad():
        expected = model(inputs)
        compiled = torch.compile(sparsify(model), fullgraph=True, backend=backend)
        close(compiled(inputs), expected)
        close(compiled(inputs[:2]), expected[:2])
        model.load_state_dict({name: 2 * tensor for name, tensor in model.state_dict().items()})
        found = compiled(inputs)
        close(found, desparsify(model)(inputs))
        assert not torch.allclose(found, expected)


def test_weights_that_change() -> None:
    layer = sparsify(pruned(nn.Linear(8, 6)))
    rows = torch.randn(4, 8)
    with torch.inference_mode():
        layer(rows)
    other = nn.Linear(8, 6)
    with torch.no_grad():
        for change in (
            lambda: layer.weight.mul_(3),
            lambda: layer.load_state_dict(other.state_dict()),
            lambda: layer.load_state_dict(nn.Linear(8, 6).state_dict(), assign=True),
            lambda: setattr(layer, "bias", None),
            lambda: setattr(layer, "weight", nn.Parameter(torch.zeros(6, 8))),
        ):
            change()
            close(layer(rows), nn.functional.linear(rows, layer.weight, layer.bias))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_types(dtype: str) -> None:
    layer = sparsify(pruned(nn.Linear(8, 6))).to(getattr(torch, dtype))
    rows = torch.randn(2, 4, 8).to(layer.weight.dtype)
    with torch.no_grad():
        found, expected = layer(rows), nn.functional.linear(rows.double(), layer.weight.double(), layer.bias.double())
        assert found.dtype == rows.dtype
        torch.testing.assert_close(found.double(), expected, rtol=1e-2, atol=1e-2)
        operator = layer._runner.outputs
        layer._runner.outputs = None  # calls like the first do without the operator
        assert torch.equal(layer(rows), found)
        layer._runner.outputs = operator
        assert torch.equal(layer(rows.flip(0)).flip(0), found)


def test_autocast() -> None:
    layer = sparsify(pruned(nn.Linear(8, 6)))
    rows = torch.randn(4, 8)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        for each in (layer, compiled):
            found = each(rows)
            assert found.dtype == torch.bfloat16
            torch.testing.assert_close(found.float(), layer._kind.forward(layer, rows).float(), rtol=1e-2, atol=1e-2)
    assert layer._runner._compiled


def test_rows_of_any_shape() -> None:
    layer = pruned(nn.Linear(8, 6))
    images = pruned(nn.Conv2d(4, 3, 3, padding=1))
    rows = [torch.randn(8), torch.randn(2, 3, 5, 8), torch.randn(8, 5).T, torch.randn(5, 16)[:, ::2], torch.zeros(0, 8)]
    pictures = [torch.randn(4, 5, 6), torch.randn(2, 4, 6, 5).transpose(2, 3), torch.randn(2, 4, 3, 9)]
    pictures.append(torch.randn(2, 4, 6, 6).to(memory_format=torch.channels_last))
    for module, inputs in ((layer, rows), (images, pictures)):
        with torch.no_grad():
            expected = [module(each) for each in inputs]
            sparsify(module)
            for each, outputs in zip(inputs, expected, strict=True):
                close(module(each), outputs)
            with pytest.raises(RuntimeError):
                module(torch.zeros(2, 3))


def test_gradients_are_pytorchs() -> None:
    layer = pruned(nn.Linear(8, 6))
    copied = sparsify(layer, inplace=False)
    rows = torch.randn(4, 8)
    layer(rows).square().sum().backward()
    with pytest.warns(UserWarning, match=r"inference_mode"):
        copied(rows).square().sum().backward()
    assert torch.equal(copied.weight.grad, layer.weight.grad)
    copied.requires_grad_(False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        close(copied(rows), layer(rows).detach())
    _, tangent = torch.func.jvp(copied, (rows,), (torch.ones_like(rows),))
    close(tangent, layer.weight.sum(1).expand(4, 6).detach())


def test_masks_are_applied_and_come_back() -> None:
    layer = nn.Linear(8, 6).eval()
    seen: list[Any] = []
    layer.register_forward_pre_hook(lambda module, rows: seen.append(len(rows)))
    prune.l1_unstructured(layer, "weight", amount=0.8)
    prune.random_unstructured(layer, "bias", amount=0.5)
    hooks = list(layer._forward_pre_hooks.items())
    rows = torch.randn(4, 8)
    with torch.no_grad():
        expected = layer(rows)
        keys = list(layer.state_dict())
        sparsify(layer)
        assert count(layer) == 1
        close(layer(rows), expected)
        layer.weight_orig.mul_(2)
        layer.bias_orig.mul_(2)
        close(layer(rows), 2 * expected)
        assert list(layer.state_dict()) == keys
    with pytest.warns(UserWarning, match=r"inference_mode"):
        layer(rows).sum().backward()
    assert torch.equal(layer.weight_orig.grad != 0, layer.weight_mask != 0)
    assert list(desparsify(layer)._forward_pre_hooks.items()) == hooks
    assert len(seen) == 4
    prune.remove(layer, "weight")


def test_copied_pickled_and_used_by_threads(case: tuple[Any, Any, int]) -> None:
    model, inputs, replaced = case
    with torch.no_grad():
        expected = model(inputs)
        sparsify(model)
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        for each in (
            copy.deepcopy(model),
            pickle.loads(pickle.dumps(model)),
            torch.load(file, weights_only=False),
            nn.DataParallel(model),
        ):
            assert count(each) == replaced
            close(each(inputs), expected)

    @torch.inference_mode()
    def call() -> list[Any]:
        return [model(inputs) for _ in range(3)]

    with ThreadPoolExecutor(3) as pool:
        for each in (each for called in [pool.submit(call) for _ in range(3)] for each in called.result()):
            close(each, expected)


def test_tied_weights_are_compiled_once() -> None:
    first, second = pruned(nn.Linear(8, 8)), nn.Linear(8, 8)
    second.weight, second.bias = first.weight, first.bias
    model = sparsify(nn.Sequential(first, first, second))
    assert first._runner is second._runner
    assert model[0] is model[1]
    copied = copy.deepcopy(model)
    assert copied[0]._runner is copied[2]._runner is not first._runner


def test_hooks_run_and_parametrized_modules_stay() -> None:
    model = pruned(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)))
    model[0].register_forward_hook(lambda module, rows, outputs: outputs + 1)
    importlib.import_module("torch.nn.utils.parametrizations").weight_norm(model[1])
    model[2].forward = lambda rows: rows
    with torch.no_grad():
        model[3].weight[0, 0] = float("nan")
    rows = torch.randn(4, 8)
    with torch.no_grad():
        expected = model(rows)
        _, report = sparsify(model, report=True)
        torch.testing.assert_close(model(rows), expected, equal_nan=True)
    assert [each.is_replaced for each in report.modules] == [True, False, False, False]
    for each, words in zip(report.modules[1:], ("remove_parametrizations", "of its own", "not finite"), strict=True):
        assert words in each.reason
        assert each.density is None


class Doubled(nn.Module):
    def forward(self, weight: Any) -> Any:
        return 2 * weight


def test_modules_that_are_parametrized_later() -> None:
    plain = pruned(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)))
    model, rows = sparsify(copy.deepcopy(plain)), torch.randn(4, 8)
    kind, parametrize = type(model[0]), importlib.import_module("torch.nn.utils.parametrize")
    parametrize.register_parametrization(model[0], "weight", Doubled())
    parametrize.remove_parametrizations(model[0], "weight", leave_parametrized=False)
    assert type(model[0]) is kind
    with torch.no_grad():
        torch.testing.assert_close(model(rows), plain(rows))
    for each in (plain, model):
        parametrize.register_parametrization(each[0], "weight", Doubled())
    with torch.no_grad():
        expected = plain(rows)
        torch.testing.assert_close(model(rows), expected)
        desparsify(model)
        torch.testing.assert_close(model(rows), expected)
        assert [type(each).__name__ for each in model] == ["ParametrizedLinear", "Linear"]
        torch.testing.assert_close(copy.deepcopy(model)(rows), expected)
        for each in (plain, model):
            parametrize.remove_parametrizations(each[0], "weight", leave_parametrized=False)
        assert type(model[0]) is nn.Linear
        torch.testing.assert_close(model(rows), plain(rows))


@pytest.mark.parametrize("name", ["precision", "kernel"])
def test_unknown_names_are_refused_at_once(name: str) -> None:
    model = pruned(nn.Sequential(nn.Linear(8, 8)))
    with pytest.raises(UsageError, match=f"{name} 'x'"):
        sparsify(model, **{name: "x"})
    assert type(model[0]) is nn.Linear


def test_the_report_and_the_choice_by_an_example(case: tuple[Any, Any, int], monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs, replaced = case
    model.train()
    statistics = copy.deepcopy(model.state_dict())
    _, report = sparsify(model, example=inputs, report=True)
    assert all(torch.equal(tensor, statistics[name]) for name, tensor in model.state_dict().items())
    assert all(module.training for module in model.modules())
    timed = [each for each in report.modules if each.seconds_after is not None]
    assert len(timed) == replaced
    assert count(model) == sum(each.is_replaced for each in report.modules)
    for each in timed:
        assert each.is_replaced == (each.seconds_after <= 0.95 * each.seconds_before)
    text = str(report)
    assert all(f"{each.density:.1%}" in text and each.name in text for each in timed)
    for gain, number in ((float("inf"), replaced), (0.0, 0)):
        monkeypatch.setattr("sparsenn.interop.torch.replacing.GAIN", gain)
        assert count(sparsify(model, example=inputs)) == number


def test_what_the_example_does_not_call_stays() -> None:
    model = pruned(nn.ModuleDict({"called": nn.Linear(8, 6), "idle": nn.Linear(8, 6), "dense": nn.Linear(8, 6)}))
    nn.init.ones_(model["dense"].weight)
    model.forward = lambda rows, more: model["called"](rows) + more
    example = {"rows": torch.zeros(2, 8), "more": torch.zeros(6)}
    for arguments in (example, tuple(example.values())):
        _, report = sparsify(model, 0.5, example=arguments, report=True)
        called, idle, dense = report.modules
        assert called.seconds_before is not None
        assert (idle.is_replaced, idle.reason) == (False, "the example does not call it")
        assert (dense.is_replaced, dense.density) == (False, 1.0)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_encoders_with_padding() -> None:
    model = pruned(nn.TransformerEncoder(encoder(), 2))
    rows, padding = torch.randn(2, 5, 16), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    with torch.no_grad():
        expected = model(rows, src_key_padding_mask=padding)
        close(sparsify(model)(rows, src_key_padding_mask=padding), expected)
    assert count(model) == 4


def test_exported_and_mapped() -> None:
    layer = pruned(nn.Linear(8, 6))
    rows = torch.randn(3, 4, 8)
    with torch.no_grad():
        expected = layer(rows)
        sparsify(layer)
        close(torch.export.export(layer, (rows,)).module()(rows), expected)
        close(torch.vmap(layer)(rows), expected)
        close(torch.func.functional_call(layer, dict(layer.named_parameters()), (rows,)), expected)


def test_modules_without_weights_that_count() -> None:
    rows = torch.randn(3, 8)
    empty = nn.Linear(8, 6)
    nn.init.zeros_(empty.weight)
    with torch.no_grad():
        close(sparsify(empty)(rows), empty.bias.expand(3, 6))
        lazy = nn.Sequential(nn.LazyLinear(4))
        _, report = sparsify(lazy, report=True)
        assert not report.modules[0].is_replaced


def test_infinite_numbers_pass() -> None:
    layer = sparsify(pruned(nn.Linear(4, 3)))
    with torch.no_grad():
        layer.weight.copy_(torch.eye(3, 4))
        layer.bias.zero_()
        rows = torch.tensor([[float("inf"), 1.0, float("nan"), 0.0]])
        assert not layer(rows)[0, [0, 2]].isfinite().any()


def test_what_is_refused() -> None:
    layer = pruned(nn.Linear(4, 3))
    for arguments, options, words in (
        ((3,), {}, "takes a torch.nn.Module"),
        ((layer, 0), {}, "density_below is 0"),
        ((layer, 1.5), {}, "density_below is 1.5"),
        ((layer, torch.rand(64, 32)), {}, r"density_below is a Tensor, .* pass a batch as example="),
        ((layer,), {"device": "cpu"}, "leave out device"),
        ((layer,), {"devise": "cpu"}, "there is no option 'devise'"),
    ):
        with pytest.raises(UsageError, match=words):
            sparsify(*arguments, **options)
    with pytest.raises(UsageError, match="desparsify takes"):
        desparsify(3)
    with pytest.raises(UsageError, match=r"call sparsenn\.torch\.desparsify first"):
        sparsenn.from_torch(nn.Sequential(sparsify(layer, 1.0, inplace=False), nn.ReLU()))
    assert sparsenn.torch.desparsify(layer) is layer


@pytest.mark.gpu
def test_on_a_gpu(case: tuple[Any, Any, int]) -> None:
    if not torch.cuda.is_available():
        pytest.skip("PyTorch sees no GPU")
    model, inputs, replaced = case
    model, inputs = model.cuda(), inputs.cuda()
    with torch.no_grad():
        expected = model(inputs)
        sparsify(model)
        for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                found = model(inputs)
            torch.cuda.current_stream().wait_stream(stream)
            torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
        sparsify(model, example=inputs)
        assert count(model) <= replaced


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("dtype", "asked", "precision"),
    [
        ("float32", "auto", "float32"),
        ("float16", "auto", "float16"),
        ("bfloat16", "auto", "tf32"),
        ("float16", "float32", "float32"),
    ],
)
def test_precision_on_a_gpu_is_that_of_the_weights(dtype: str, asked: str, precision: str) -> None:
    if not torch.cuda.is_available():
        pytest.skip("PyTorch sees no GPU")
    layer = pruned(nn.Linear(64, 48)).to("cuda", getattr(torch, dtype))
    rows = torch.randn(3, 5, 64, device="cuda", dtype=layer.weight.dtype)
    with torch.inference_mode():
        expected = layer(rows)
        sparsify(layer, precision=asked)
        for _ in range(3):
            found = layer(rows)
            assert found.dtype == rows.dtype
            torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-2)
        (compiled,) = layer._runner._compiled.values()
        assert compiled.session.options.precision == precision


@pytest.mark.gpu
def test_sessions_compute_what_a_graph_captures(monkeypatch: pytest.MonkeyPatch) -> None:
    if not torch.cuda.is_available():
        pytest.skip("PyTorch sees no GPU")
    by_pytorch: list[Any] = []

    def slower(session: Callable[[], Any], pytorch: Callable[[], Any], queued: int) -> bool:
        for _ in range(3):  # the session is prepared
            torch.testing.assert_close(session(), pytorch(), rtol=1e-2, atol=1e-2)
        return True

    def counted(*arguments: Any) -> Any:
        by_pytorch.append(arguments)
        return own(*arguments)

    own = nn.functional.linear
    monkeypatch.setattr(SLOWER, slower)
    monkeypatch.setattr("sparsenn.interop.torch.runner.linear", counted)
    monkeypatch.setattr(nn.functional, "linear", counted)
    layer = pruned(nn.Linear(64, 48)).cuda().half()
    rows = torch.randn(5, 64, device="cuda").half()
    with torch.inference_mode():
        expected = layer(rows)
        sparsify(layer)
        for _ in range(4):
            by_pytorch.clear()
            assert torch.equal(layer(rows), expected)
            assert by_pytorch
        torch.cuda.synchronize()
        by_pytorch.clear()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outputs = layer(rows)
        assert not by_pytorch
        graph.replay()
        torch.testing.assert_close(outputs, expected, rtol=1e-2, atol=1e-2)


def stale(model: Any, change: Callable[[], object]) -> torch.Tensor:
    """Return how far outputs are off after weights have changed."""
    rows = torch.randn(5, 8, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        model(rows)
    change()
    with torch.no_grad():
        return (model(rows) - nn.functional.linear(rows, model.weight, model.bias)).abs().max()


@pytest.mark.filterwarnings("ignore:a gradient is recorded")
@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_steps_of_fused_optimizers_are_seen(kind: Any) -> None:
    layer = sparsify(pruned(nn.Linear(8, 8)))
    optimizer = kind(layer.parameters(), lr=0.5, fused=True)

    def step() -> None:
        layer(torch.randn(4, 8)).square().sum().backward()
        optimizer.step()

    assert stale(layer, step) < 1e-5


def test_other_parameters_on_the_same_memory_and_weights_of_inference_mode_are_seen() -> None:
    layer = sparsify(pruned(nn.Linear(8, 8)))
    transposed = nn.Parameter(layer.weight.detach().t())
    assert stale(layer, lambda: setattr(layer, "weight", transposed)) < 1e-5
    with torch.inference_mode():
        other = sparsify(pruned(nn.Linear(8, 8)))
    assert stale(other, torch.inference_mode()(lambda: other.weight.mul_(2))) < 1e-5


def test_graphs_of_a_model_that_was_called_compute_it() -> None:
    layer, rows, others = sparsify(pruned(nn.Linear(64, 64)), reproducible=True), torch.randn(1, 64), torch.randn(1, 64)
    with torch.no_grad():
        close(layer(rows), layer(rows))
        close(make_fx(layer)(rows)(others), layer(others))


def test_rows_of_another_type_are_refused_as_by_pytorch() -> None:
    layer, rows = sparsify(pruned(nn.Linear(64, 64))), torch.randn(1, 64)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert layer(rows).dtype is torch.bfloat16
    with torch.no_grad(), pytest.raises(RuntimeError, match="dtype"):
        layer(rows.bfloat16())


def test_masks_stay_those_of_pytorch() -> None:
    layer = nn.Linear(8, 8)
    prune.l1_unstructured(layer, "weight", 0.9)
    copied, report = sparsify(layer, inplace=False, report=True)
    assert type(layer) is nn.Linear
    assert "until prune.remove" in report.modules[0].reason
    sparsify(layer)
    assert stale(layer, lambda: layer.weight_orig.data.copy_(layer.weight_orig * 2)) >= 0
    with torch.no_grad():
        layer.weight_orig.mul_(2)
        layer(torch.ones(1, 8))
    assert torch.equal(layer.weight, layer.weight_orig * layer.weight_mask)
    prune.random_unstructured(layer, "weight", 0.5)
    assert stale(layer, lambda: prune.remove(layer, "weight")) < 1e-5
    assert torch.equal(copied.weight_mask.bool(), copied.weight != 0)


def test_a_convolution_whose_padding_changes_goes_back_to_pytorch() -> None:
    layer = sparsify(pruned(nn.Conv2d(3, 4, 3, padding=1)))
    images = torch.randn(2, 3, 7, 7)
    with torch.no_grad():
        layer(images)
        layer.dilation = layer.padding = (2, 2)
        expected = nn.functional.conv2d(images, layer.weight, layer.bias, padding=2, dilation=2)
        assert torch.allclose(layer(images), expected, atol=1e-5)


@pytest.mark.parametrize("shape", [(16,), (1, 16), (2, 3, 16)])
def test_calls_like_earlier_ones_go_straight_to_the_session(shape: tuple[int, ...]) -> None:
    layer = sparsify(pruned(nn.Linear(16, 6)))
    calls: list[Any] = []
    rows = torch.randn(shape)
    with torch.no_grad():
        first = layer(rows)
        operator = layer._runner.outputs
        layer._runner.outputs = lambda *given: calls.append(given) or operator(*given)
        assert torch.equal(layer(rows), first)
        assert not calls
        assert not layer(rows).is_inference()
        with torch.inference_mode():
            assert layer(rows).is_inference()
        strided = torch.randn(*shape[:-1], 32)[..., ::2]
        close(layer(strided), layer._kind.forward(layer, strided))
        assert len(calls) == 1
        with torch.autocast("cpu", torch.bfloat16):
            assert layer(rows).dtype == torch.bfloat16
        assert len(calls) == 2
        layer.weight.mul_(2)
        close(layer(rows), layer._kind.forward(layer, rows))
        assert len(calls) == 3
        layer.weight.data = torch.zeros(6, 16)
        assert torch.equal(layer(rows), layer.bias.expand(*shape[:-1], 6))
        assert len(calls) == 4
        mapped = torch.func.functional_call(layer, {"weight": torch.ones(6, 16)}, rows)
        close(mapped, nn.functional.linear(rows, torch.ones(6, 16), layer.bias))
    with pytest.warns(UserWarning, match="a gradient is recorded"):
        assert layer(rows).requires_grad


def test_pytorch_computes_what_sessions_take_longer_for(
    case: tuple[Any, Any, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, inputs, _ = case
    asked: list[bool] = []

    def slower(session: Callable[[], Any], pytorch: Callable[[], Any], queued: int) -> bool:
        close(session(), pytorch())
        asked.append(True)
        return True

    monkeypatch.setattr(SLOWER, slower)
    with torch.inference_mode():
        expected = model(inputs)
        for options, is_measured in (({}, True), ({"reproducible": True}, False), ({"kernel": "panel"}, False)):
            if "kernel" in options and any(isinstance(module, nn.Conv2d) for module in model.modules()):
                continue
            other = sparsify(model, inplace=False, **options)
            asked.clear()
            for _ in range(3):
                found = other(inputs)
                assert torch.equal(found, expected) or not is_measured
                close(found, expected)
            assert bool(asked) == is_measured
            times = len(asked)
            other(inputs)
            assert len(asked) == times


def test_a_call_left_to_pytorch_takes_a_bias_of_any_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SLOWER, lambda session, pytorch, queued: True)
    model, rows = nn.Sequential(nn.Linear(8, 4, bias=False)).eval(), torch.randn(5, 8)
    model[0].weight.data[:, ::2] = 0
    layer: Any = sparsify(model)[0]
    with torch.inference_mode():
        for _ in range(3):
            layer(rows)
        del layer.bias
        layer.register_buffer("bias", torch.ones(4))
        close(layer(rows), nn.functional.linear(rows, layer.weight, layer.bias))


def test_times_of_two_calls() -> None:
    short, long = (partial(torch.zeros, size) for size in (1, 1 << 22))
    for queued in (1, 4):
        assert is_slower(long, short, queued)
        assert not is_slower(short, long, queued)
