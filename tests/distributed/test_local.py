"""A cluster of this machine: GPUs and cores are divided, and nobody else runs code in it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sparsenn.distributed import local_cluster
from sparsenn.distributed.cluster import local
from sparsenn.errors import UsageError
from sparsenn.runtime.workers import thread_count

pytest.importorskip("distributed.client", reason="the extra dask is not installed")


def test_each_worker_sees_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_gpus", lambda: ["3", "5"])
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    with local_cluster() as client:
        found = client.run(eval, "__import__('os').environ['CUDA_VISIBLE_DEVICES']")
        assert sorted(found.values()) == ["3", "5"]
        pids = client.run(os.getpid).values()
        assert os.getpid() not in pids
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == before
    with pytest.raises(UsageError, match="there are 2 GPUs for 3 workers"), local_cluster(3):
        pass


def test_workers_share_the_cores() -> None:
    with local_cluster(3, device="cpu") as client:
        found = client.run(eval, "__import__('sparsenn.runtime.workers').runtime.workers.thread_count()")
        assert list(found.values()) == 3 * [max(1, thread_count() // 3)]
        assert "://127.0.0.1:" in client.scheduler.address


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


def test_importing_the_package_imports_no_dask() -> None:
    code = "import sys, sparsenn, sparsenn.distributed; sparsenn.distributed.infer; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"dask", "distributed"} & set(found)


FOREIGN = """
import sys
from distributed import Client
try:
    print(list(Client(sys.argv[1], timeout=3).run(eval, "1")))
except Exception:
    print("refused")
"""


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl, which makes certificates, is not here")
def test_who_has_no_certificate_runs_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by the scheduler, nor by a worker or its nanny; the certificate is made in place of `cryptography`."""
    from distributed import Security

    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=dask-internal"]
    subprocess.run([*made, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    roles = ("client", "scheduler", "worker")
    files = {f"tls_{role}_{kind}": str(path) for role in roles for kind, path in (("key", key), ("cert", certificate))}
    temporary = Security(tls_ca_file=str(certificate), require_encryption=True, **files)
    monkeypatch.setattr(Security, "temporary", lambda: temporary)
    monkeypatch.setattr(local, "find_spec", lambda name: None if name == "cupy" else object())
    with local_cluster(1, device="cpu") as client:
        worker, nanny = *client.nthreads(), client.cluster.workers[0].address
        for address in (client.scheduler.address, worker, nanny):
            assert address.startswith("tls://127.0.0.1:")
            for scheme in ("tls", "tcp"):
                place = f"{scheme}://{address.partition('://')[2]}"
                found = subprocess.run([sys.executable, "-c", FOREIGN, place], capture_output=True, text=True)
                assert found.stdout == "refused\n", found.stderr
        assert list(client.run(eval, "1").values()) == [1]
