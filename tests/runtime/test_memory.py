"""Memory that is left: what the system tells, and what control groups allow, from files made up here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sparsenn.backends import backend_for
from sparsenn.errors import ResourceError
from sparsenn.runtime import memory
from sparsenn.runtime.memory import check_memory, free_memory

GIB = 1 << 30


def files(root: Path, **contents: str | int) -> Path:
    """Write files; a name's parts are divided by two underscores."""
    for name, content in contents.items():
        path = root.joinpath(*name.split("__"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")
    return root


@pytest.fixture
def system(tmp_path: Path) -> Path:
    """A system that has 8 GiB left, and no control groups."""
    return files(tmp_path, proc__meminfo=f"MemTotal:  {16 << 20} kB\nMemFree: 9 kB\nMemAvailable:   {8 << 20} kB")


def group(top: Path, path: str, limit: str | int, used: int) -> None:
    """Write a group of version 2, whose limit is in GiB as all numbers here."""
    numbers = {"max": limit if isinstance(limit, str) else limit * GIB, "current": used * GIB}
    stat = "anon 5\ninactive_file 0\nactive_file 7"
    files(top / path, **{f"memory.{name}": number for name, number in numbers.items()}, **{"memory.stat": stat})


def old_group(top: Path, path: str, limit: int, used: int, cached: int = 0) -> None:
    """Write a group of version 1."""
    numbers = {"limit_in_bytes": limit, "usage_in_bytes": used}
    stat = f"inactive_file 1\ntotal_inactive_file {cached}"
    files(top / path, **{f"memory.{name}": number for name, number in numbers.items()}, **{"memory.stat": stat})


def test_a_group_that_allows_less_or_more(system: Path) -> None:
    files(system, proc__self__cgroup="0::/app")
    top = system / "sys/fs/cgroup"
    group(top, "app", 6, 1)
    assert free_memory(system) == 5 * GIB
    group(top, "app", 60, 1)
    assert free_memory(system) == 8 * GIB
    group(top, "app", "max", 1)
    assert free_memory(system) == 8 * GIB


def test_every_group_above_counts(system: Path) -> None:
    files(system, proc__self__cgroup="0::/user.slice/user-1.slice/run:7.scope")
    top = system / "sys/fs/cgroup"
    group(top, "user.slice/user-1.slice/run:7.scope", "max", 1)
    group(top, "user.slice/user-1.slice", 7, 3)
    group(top, "user.slice", 9, 7)
    assert free_memory(system) == 2 * GIB
    group(top, "user.slice/user-1.slice/run:7.scope", 2, 1)
    assert free_memory(system) == GIB
    group(top, "user.slice/user-2.slice", 1, 1)
    assert free_memory(system) == GIB


def test_version_one(system: Path) -> None:
    files(system, proc__self__cgroup="9:name=systemd:/\n4:cpu,memory:/jobs/7\n3:cpuset:/\n0::/")
    top = system / "sys/fs/cgroup/memory"
    old_group(top, "", (1 << 63) - 4096, 9)
    old_group(top, "jobs", 6 * GIB, 5 * GIB, 2 * GIB)
    old_group(top, "jobs/7", (1 << 63) - 4096, 9)
    assert free_memory(system) == 3 * GIB
    old_group(top, "jobs/7", 2 * GIB, GIB)
    assert free_memory(system) == GIB


@pytest.mark.parametrize("spoilt", ["memory.max", "memory.current"])
def test_a_group_that_cannot_be_read_limits_nothing(system: Path, spoilt: str) -> None:
    files(system, proc__self__cgroup="0::/app")
    group(system / "sys/fs/cgroup", "app", 1, 1)
    for content in ("", "much"):
        (system / "sys/fs/cgroup/app" / spoilt).write_text(content)
        assert free_memory(system) == 8 * GIB


def test_the_least_of_all_limits(system: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = os.sysconf("SC_PAGE_SIZE")
    files(system, proc__self__cgroup="0::/app", proc__self__statm=f"{GIB // page} 17 9")
    group(system / "sys/fs/cgroup", "app", 6, 1)
    limits = {"soft": 4 * GIB}
    monkeypatch.setattr(memory.resource, "getrlimit", lambda kind: (limits["soft"], -1))
    assert free_memory(system) == 3 * GIB
    group(system / "sys/fs/cgroup", "app", 3, 1)
    assert free_memory(system) == 2 * GIB
    limits["soft"] = GIB // 2
    assert free_memory(system) == 0
    limits["soft"] = memory.resource.RLIM_INFINITY
    assert free_memory(system) == 2 * GIB
    monkeypatch.setattr(memory, "resource", None)
    assert free_memory(system) == 2 * GIB


def test_the_limit_of_a_process_bounds_what_a_plan_takes() -> None:
    program = (
        "import resource, numpy, scipy.sparse, sparsenn\n"
        "network = sparsenn.Network.from_scipy([scipy.sparse.eye(3, format='csc')])\n"
        "limit = 20 * 1000**3\n"
        "resource.setrlimit(resource.RLIMIT_AS, (limit, limit))\n"
        "from sparsenn.runtime.memory import free_memory\n"
        "assert free_memory() < limit\n"
        "resource.setrlimit(resource.RLIMIT_AS, (10 * 1000**3, limit))\n"
        "plan = sparsenn.plan(network, numpy.ones((1, 3)), device='cpu')\n"
        "print(plan.compiled.memory_limit)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert 0 < int(done.stdout) < 5 * 1000**3


def test_this_machine_has_some_and_no_more_than_all() -> None:
    found = free_memory()
    assert 0 < found <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_what_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    check_memory(1, "it")
    monkeypatch.setattr(memory, "free_memory", lambda: 5_000_000)
    check_memory(5_000_000, "it")
    with pytest.raises(ResourceError, match=r"^it needs 2.5 GB of memory; 5.0 MB are available; do that$"):
        check_memory(2_500_000_000, "it", "do that")
    with pytest.raises(ResourceError, match=r"are available; close other programs, or use a machine with more$"):
        check_memory(5_000_001, "it")


@pytest.mark.parametrize(("left", "told"), [(7, 7), (None, 0)])
@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_backends_on_the_host_tell_it(
    monkeypatch: pytest.MonkeyPatch, device: str, left: int | None, told: int
) -> None:
    backend = backend_for(device)
    monkeypatch.setattr("sparsenn.backends.host.free_memory", lambda: left)
    assert backend.free_memory() == told
