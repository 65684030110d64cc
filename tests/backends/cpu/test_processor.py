"""The processor as a machine."""

import pytest

from sparsenn.backends.cpu import CPUBackend, processor
from sparsenn.backends.cpu.processor import host_machine
from sparsenn.runtime.workers import thread_count


def test_a_machine_is_told_by_its_processor_and_threads():
    found = host_machine()
    assert found.name.endswith(f", {thread_count()} thread{'s' if thread_count() > 1 else ''}")
    assert (found.device, found.multiprocessors) == ("cpu", thread_count())
    assert found == CPUBackend().machine


@pytest.mark.parametrize(("threads", "words"), [(1, "A chip, 1 thread"), (12, "A chip, 12 threads")])
def test_threads_are_in_the_name(monkeypatch, threads, words):
    monkeypatch.setattr(processor, "_processor", lambda: "A chip")
    monkeypatch.setattr(processor, "thread_count", lambda: threads)
    assert host_machine().name == words
