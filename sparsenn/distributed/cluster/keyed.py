"""Connections of a cluster of this machine: of processes that have a key in common, so that no other user runs code.

Any user may connect to 127.0.0.1, and a process that is connected to a scheduler or a worker of Dask can make it run
code. Dask's own remedy, TLS, needs a package that makes certificates. Here either end of a new connection proves that
it has the key, before anything else is read from it; what follows is Dask's TCP, which other users of a machine cannot
listen to.
"""

from __future__ import annotations

import asyncio
import hmac
from secrets import token_bytes, token_hex
from typing import Any

import dask
from distributed import Worker
from distributed.comm import CommClosedError
from distributed.comm.registry import backends
from distributed.comm.tcp import TCP, TCPBackend, TCPConnector, TCPListener
from tornado.iostream import StreamClosedError

__all__ = ["SCHEME", "KeyedWorker", "key_settings"]

SCHEME = "keyed"
"""What addresses begin with, before `://`."""

_SETTING = "sparsenn.cluster-key"
"""Dask's setting by which a worker's process is given the key."""

_NONCE_BYTES = 32
_PROOF_BYTES = 32

_PROOF_SECONDS = 10.0
"""Within which the other end must prove that it has the key."""

_key = token_hex(32)


def key_settings() -> dict[str, Any]:
    """Return Dask's settings for workers that are to have the key of this process."""
    return {_SETTING: dask.config.get(_SETTING, _key)}


def _proof(role: bytes, place: tuple[Any, ...], nonces: bytes) -> bytes:
    """Return what only those with the key can: `place` is the listener's, lest proofs be passed on to another one."""
    key = str(dask.config.get(_SETTING, _key)).encode()
    return hmac.digest(key, role + repr(place).encode() + nonces, "sha256")


async def _is_proved(stream: Any, role: bytes, place: tuple[Any, ...], nonces: bytes) -> bool:
    return hmac.compare_digest(await stream.read_bytes(_PROOF_BYTES), _proof(role, place, nonces))


async def _admitted(stream: Any) -> bool:
    """Return whether what has connected has the key; it gets a proof of this end only then."""
    place, own = stream.socket.getsockname(), token_bytes(_NONCE_BYTES)
    await stream.write(own)
    nonces = own + await stream.read_bytes(_NONCE_BYTES)
    if not await _is_proved(stream, b"connector", place, nonces):
        return False
    await stream.write(_proof(b"listener", place, nonces))
    return True


async def _accepted(stream: Any) -> bool:
    """Return whether what this end has connected to has the key."""
    place = stream.socket.getpeername()
    nonces = await stream.read_bytes(_NONCE_BYTES) + (own := token_bytes(_NONCE_BYTES))
    await stream.write(own + _proof(b"connector", place, nonces))
    return await _is_proved(stream, b"listener", place, nonces)


class _Comm(TCP):  # type: ignore[misc]
    prefix = f"{SCHEME}://"


class _Connector(TCPConnector):  # type: ignore[misc]
    prefix = f"{SCHEME}://"
    comm_class = _Comm

    async def connect(self, address: str, deserialize: bool = True, **arguments: Any) -> Any:
        comm = await super().connect(address, deserialize, **arguments)
        proved = False
        try:
            proved = await asyncio.wait_for(_accepted(comm.stream), _PROOF_SECONDS)
        except (TimeoutError, StreamClosedError):
            pass
        finally:  # also where Dask cancels the attempt, as its time is over
            if not proved:
                comm.abort()
        if not proved:
            raise CommClosedError(f"{address} does not have the key of this cluster")
        return comm


class _Listener(TCPListener):  # type: ignore[misc]
    prefix = f"{SCHEME}://"
    comm_class = _Comm

    async def _prepare_stream(self, stream: Any, address: str) -> Any:
        try:
            proved = await asyncio.wait_for(_admitted(stream), _PROOF_SECONDS)
        except (TimeoutError, StreamClosedError):
            proved = False
        if proved:
            return stream
        stream.close()
        return None


class _Backend(TCPBackend):  # type: ignore[misc]
    _connector_class, _listener_class = _Connector, _Listener


class KeyedWorker(Worker):  # type: ignore[misc]
    """A worker: its process knows such connections, as it imports this module for the class."""


backends[SCHEME] = _Backend()
