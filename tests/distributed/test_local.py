"""A cluster of this machine: GPUs and cores are divided, processes end with it, and Dask's settings are as before."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sparsenn.distributed import infer, local_cluster
from sparsenn.distributed.cluster import local
from sparsenn.errors import UsageError
from sparsenn.workers import thread_count

dask = pytest.importorskip("dask", reason="the extra dask is not installed")
pytest.importorskip("distributed.client", reason="the extra dask is not installed")

METHOD = "distributed.worker.multiprocessing-method"


def test_each_worker_sees_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_gpus", lambda: ["3", "5"])
    before = dask.config.get(METHOD), dict(os.environ)
    with local_cluster() as client:
        found = client.run(eval, "__import__('os').environ['CUDA_VISIBLE_DEVICES']")
        assert sorted(found.values()) == ["3", "5"]
        pids = client.run(os.getpid).values()
        assert os.getpid() not in pids
    assert dask.config.get(METHOD) == before[0]
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == before[1].get("CUDA_VISIBLE_DEVICES")
    with pytest.raises(UsageError, match="there are 2 GPUs for 3 workers"), local_cluster(3):
        pass


def test_workers_share_the_cores() -> None:
    with local_cluster(3, device="cpu") as client:
        found = client.run(eval, "__import__('sparsenn.workers').workers.thread_count()")
        assert list(found.values()) == 3 * [max(1, thread_count() // 3)]
        assert client.scheduler.address.startswith("tcp://127.0.0.1:")


def test_gpus_are_those_that_are_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "find_spec", lambda name: object())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", " 2, GPU-8f,-1")
    assert local._gpus() == ["2", "GPU-8f"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert local._gpus() == []
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    listed = subprocess.CompletedProcess([], 0, "GPU 0: A\n  MIG 1g\nGPU 1: A\n")
    monkeypatch.setattr(subprocess, "run", lambda *words, **options: listed)
    assert local._gpus() == ["0", "1"]
    monkeypatch.setattr(local, "find_spec", lambda name: None)
    assert local._gpus() == []


@pytest.mark.parametrize("workers", [0, -1, 1.5, "2"])
def test_other_numbers_of_workers_are_refused(workers: object) -> None:
    with pytest.raises(UsageError, match="the number of workers is"), local_cluster(workers, device="cpu"):  # type: ignore[arg-type]
        pass


@pytest.mark.parametrize("client", ["tcp://127.0.0.1:1", 3])
def test_what_is_no_client_is_refused(client: object, problem: Path) -> None:
    with pytest.raises(UsageError, match=r"^the client is (a str|an int); give a distributed.Client"):
        infer(problem, problem, client)


def test_importing_the_package_imports_no_dask() -> None:
    code = "import sys, sparsenn, sparsenn.distributed; sparsenn.distributed.infer; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"dask", "distributed"} & set(found)
