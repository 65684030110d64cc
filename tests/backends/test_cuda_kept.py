"""Arrays that kernels make of weights: made once, and waited for on whichever stream they are used next."""

from types import SimpleNamespace

import pytest

from sparsenn.backends.cuda import kept as module
from sparsenn.backends.cuda.kept import kept


class Owner:
    """Something that can be referred to weakly, as layers on the device can."""


class Stream:
    def __init__(self):
        self.waited = []

    def record(self):
        return SimpleNamespace(done=False)

    def wait_event(self, event):
        self.waited.append(event)


@pytest.fixture
def stream(monkeypatch):
    found = Stream()
    cuda = SimpleNamespace(get_current_stream=lambda: found)
    monkeypatch.setattr(module, "cupy", lambda: SimpleNamespace(cuda=cuda))
    return found


def test_an_array_is_made_once_for_each_owner_and_name(stream):
    first, second = Owner(), Owner()
    made = []

    def make():
        made.append(object())
        return made[-1]

    found = [kept(owner, name, make) for owner in (first, second) for name in ("a", ("b", 1)) for _ in range(3)]
    assert len(made) == 4
    assert [found[i : i + 3] for i in range(0, 12, 3)] == [3 * [one] for one in made]


def test_the_current_stream_waits_until_the_array_is_there(stream):
    owner = Owner()
    for _ in range(2):
        kept(owner, "a", object)
    first, again = stream.waited
    assert first is again
    first.done = True
    kept(owner, "a", object)
    assert len(stream.waited) == 2


def test_an_array_goes_with_its_owner(stream):
    owner = Owner()
    kept(owner, "a", object)
    held = len(module._kept)
    del owner
    assert len(module._kept) == held - 1


def test_what_could_not_be_made_is_tried_again(stream):
    owner = Owner()

    def fail():
        raise ValueError("no room")

    with pytest.raises(ValueError, match="no room"):
        kept(owner, "a", fail)
    assert kept(owner, "a", lambda: 1) == 1
