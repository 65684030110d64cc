"""PyTorch modules count as often as they are called, and with all that is run when they are called."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import pytest
from torch_modules import Called, check, settled

from sparsenn.errors import InputError
from sparsenn.io import from_torch

torch = pytest.importorskip("torch", reason="needs PyTorch")
nn = torch.nn

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def one_activation() -> Any:
    relu = nn.ReLU()
    return nn.Sequential(nn.Linear(4, 5), relu, nn.Linear(5, 3), relu)


def tied_layers() -> Any:
    tied = nn.Linear(4, 4)
    return nn.Sequential(tied, nn.ReLU(), tied, nn.Sequential(tied))


def one_block() -> Any:
    block = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    return nn.Sequential(block, nn.Sequential(block, block))


@pytest.mark.parametrize("make", [one_activation, tied_layers, one_block])
@pytest.mark.parametrize("example", [True, False])
def test_modules_are_applied_as_often_as_they_stand_there(make: Callable[[], Any], example: bool) -> None:
    torch.manual_seed(3)
    module = make()
    check(module, (4,), example)
    check(Called(module), (4,))


class Five(nn.Linear):
    def __call__(self, rows: Any) -> Any:
        return super().__call__(rows) * 5


class Padded(nn.Conv1d):
    def _conv_forward(self, images: Any, weight: Any, bias: Any) -> Any:
        return super()._conv_forward(images * 2, weight, bias)


class Backwards(nn.Sequential):
    def __iter__(self) -> Any:
        return reversed(list(super().__iter__()))


def patched() -> Any:
    module = nn.Linear(4, 3)
    module.forward = lambda rows: nn.functional.linear(rows, module.weight) * 3
    return module


def borrowed() -> Any:
    module = nn.Linear(4, 3)
    module.forward = nn.Linear(4, 3).forward
    return module


def within() -> Any:
    module = nn.Sequential(nn.Linear(4, 4))
    module.forward = lambda rows: rows + 1
    return module


OVERRIDDEN: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "__call__": (lambda: Five(4, 3), (4,)),
    "method of its forward": (lambda: Padded(2, 3, 3), (2, 6)),
    "order": (lambda: Backwards(nn.ReLU(), nn.Linear(4, 4)), (4,)),
    "instance": (patched, (4,)),
    "instance of another": (borrowed, (4,)),
    "container": (within, (4,)),
}


@pytest.mark.parametrize(("make", "shape"), OVERRIDDEN.values(), ids=OVERRIDDEN)
def test_what_is_overridden_is_computed(make: Callable[[], Any], shape: tuple[int, ...]) -> None:
    torch.manual_seed(3)
    for module in (make(), nn.Sequential(make(), nn.ReLU())):
        check(module, shape)
        with pytest.raises(InputError, match=r"has a forward of its own: give .* from_torch\(module, example\)"):
            from_torch(module)


@contextmanager
def doubled() -> Any:
    handle = nn.modules.module.register_module_forward_hook(lambda part, rows, found: 2 * found)
    try:
        yield
    finally:
        handle.remove()


@pytest.mark.parametrize("example", [torch.ones(3, 4), None])
def test_hooks_of_all_modules_are_refused(example: Any) -> None:
    with doubled(), pytest.raises(InputError, match="Sequential"):
        from_torch(nn.Sequential(nn.Linear(4, 3)), example)


class AlwaysDropping(nn.Dropout):
    def train(self, mode: bool = True) -> Any:
        return super().train(True)


class AlwaysTraining(nn.BatchNorm1d):
    def train(self, mode: bool = True) -> Any:
        return super().train(True)


@pytest.mark.parametrize("part", [AlwaysDropping(), AlwaysTraining(4)])
@pytest.mark.parametrize("example", [torch.ones(3, 4), None])
def test_modules_that_stay_in_training_are_refused(part: Any, example: Any) -> None:
    with pytest.raises(InputError, match=r"has a forward of its own|train=True|changes its buffers"):
        from_torch(settled(nn.Sequential(nn.Linear(4, 4), part)), example)
