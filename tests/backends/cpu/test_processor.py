"""The processor as a machine."""

import pytest

from sparsenn.backends.cpu import CPUBackend, processor
from sparsenn.backends.cpu.processor import host_machine, processor_of, shared_seconds
from sparsenn.backends.prior import Prior
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


def test_idle_threads_do_no_work():
    machine, prior = processor_of("A chip", 8), Prior(compute=0.5, memory=0.5, launch=1e-5)
    alone = 1e-5 + 1e9 / (0.5 * processor_of("A chip", 1).multiply_adds("float32"))
    assert shared_seconds(prior, machine, 1, 1e9, 0) == pytest.approx(alone)
    assert shared_seconds(prior, machine, 4, 4e9, 0) == pytest.approx(alone + processor.WAKING_SECONDS)
