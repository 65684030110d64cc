"""Early launches: what the driver gets."""

import ctypes
from types import SimpleNamespace

import numpy as np
import pytest

from sparsenn.backends.cuda.runtime import early_launch
from sparsenn.backends.cuda.runtime.early_launch import STREAM_SERIALIZATION, launch_early
from sparsenn.errors import DeviceError

ADDRESS = 1 << 40


@pytest.fixture
def calls(monkeypatch):
    """Have a driver that notes the bytes of its arguments, and reports an error where a block has no threads."""
    seen = []

    def launch(config, function, places, extra):
        sizes = config._obj
        arguments = [ctypes.string_at(place, 8) for place in places]
        attribute = early_launch._Attribute.from_address(sizes.attributes)
        seen.append((sizes, function, arguments, attribute))
        return int(sizes.block[0] == 0)

    stream = SimpleNamespace(ptr=99)
    monkeypatch.setattr(early_launch, "_launch", lambda: launch)
    monkeypatch.setattr(
        early_launch, "cupy", lambda: SimpleNamespace(cuda=SimpleNamespace(get_current_stream=lambda: stream))
    )
    return seen


def kernel():
    return SimpleNamespace(kernel=SimpleNamespace(ptr=77))


def test_the_driver_gets_sizes_arguments_and_the_permission_to_begin_early(calls):
    array = SimpleNamespace(data=SimpleNamespace(ptr=ADDRESS))
    launch_early(kernel(), (3, 2), (64,), (array, np.int32(-5), np.float32(1.5)), 96)
    ((config, function, (address, negative, half), attribute),) = calls
    assert (list(config.grid), list(config.block), config.shared_bytes) == ([3, 2, 1], [64, 1, 1], 96)
    assert (config.stream, function, config.attribute_count) == (99, 77, 1)
    assert (attribute.id, attribute.value) == (STREAM_SERIALIZATION, 1)
    assert int.from_bytes(address, "little") == ADDRESS
    assert np.frombuffer(negative, np.int32)[0] == -5
    assert np.frombuffer(half, np.float32)[0] == 1.5


def test_structures_are_those_of_the_driver():
    assert ctypes.sizeof(early_launch._Attribute) == 72
    assert (early_launch._Config.stream.offset, early_launch._Config.attributes.offset) == (32, 40)


def test_an_error_of_the_driver_is_reported(calls):
    with pytest.raises(DeviceError, match="error 1"):
        launch_early(kernel(), (1,), (0,), (), 0)
