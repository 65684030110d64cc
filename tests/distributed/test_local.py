"""A cluster of this machine: GPUs and cores are divided, processes end with it, and Dask's settings are as before."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from sparsenn.distributed import infer, local_cluster
from sparsenn.distributed.cluster import local
from sparsenn.errors import UsageError
from sparsenn.runtime.workers import thread_count

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
        found = client.run(eval, "__import__('sparsenn.runtime.workers').runtime.workers.thread_count()")
        assert list(found.values()) == 3 * [max(1, thread_count() // 3)]
        assert client.scheduler.address.startswith("keyed://127.0.0.1:")


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


FOREIGN = """
import sys
from distributed import Client
try:
    import sparsenn.distributed.cluster.keyed
    print(list(Client(sys.argv[1], timeout=3).run(eval, "1")))
except Exception:
    print("refused")
"""


@pytest.mark.parametrize("scheme", ["tcp", "keyed"])
def test_who_has_no_key_runs_no_code(scheme: str) -> None:
    """Neither by the scheduler, nor by a worker or what watches over it."""
    with local_cluster(1, device="cpu") as client:
        worker, nanny = *client.nthreads(), client.cluster.workers[0].address
        for address in (client.scheduler.address, worker, nanny):
            place = f"{scheme}://{address.partition('://')[2]}"
            found = subprocess.run([sys.executable, "-c", FOREIGN, place], capture_output=True, text=True, timeout=100)
            assert found.stdout == "refused\n", found.stderr
        assert list(client.run(eval, "1").values()) == [1]


ANSWERS = {"reflected": lambda heard: heard[32:], "made up": lambda heard: bytes(32), "short": lambda heard: b"no"}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_what_has_no_key_is_not_connected_to(answer: Callable[[bytes], bytes]) -> None:
    """Such as what has taken the port of a scheduler that is gone, to have workers run code."""
    from distributed.comm import connect

    from sparsenn.distributed.cluster import keyed

    async def pretend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, EOFError):  # of an attempt that was given up
            writer.write(bytes(32))
            writer.write(answer(await reader.readexactly(64)))
            writer.close()
            await writer.wait_closed()
        writer.close()

    async def tried() -> None:
        server = await asyncio.start_server(pretend, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(OSError, match="Timed out"):
                await connect(f"{keyed.SCHEME}://127.0.0.1:{port}", timeout=0.5)
            await asyncio.sleep(0.1)  # until either end of the last attempt has closed it

    asyncio.run(tried())


@pytest.mark.parametrize("moved", [False, True])
def test_a_proof_for_one_listener_is_none_for_another(moved: bool) -> None:
    from distributed.comm import listen

    from sparsenn.distributed.cluster import keyed

    async def tried() -> bytes:
        async with listen(f"{keyed.SCHEME}://127.0.0.1:0", _hear) as listener:
            port = listener.get_host_port()[1]
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            nonces = await reader.readexactly(32) + bytes(32)
            writer.write(bytes(32) + keyed._proof(b"connector", ("127.0.0.1", port + moved), nonces))
            found = await reader.read(32)
            writer.close()
            return found

    assert len(asyncio.run(tried())) == (0 if moved else 32)


async def _hear(comm: object) -> None:
    """Do nothing with a connection."""
