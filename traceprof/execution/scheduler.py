"""Connection to a scheduler of `distributed`, with its checks and errors.

Dask's own client trusts any server: it reads the first bytes as a length, allocates that much
memory and waits forever. So the server's greeting is checked first.
"""

from __future__ import annotations

import gc
import socket
import ssl
import time
from typing import TYPE_CHECKING

from traceprof.errors import UsageError, WorkerError

if TYPE_CHECKING:
    from distributed import Client, Security

CONNECT_S = 10  # a running scheduler answers at once
WORKERS_S = 30  # a cluster may just be starting
_PAUSE_S = 0.2
_GREETING = b"pickle-protocol"  # a word in the first message of a server
_MAX_GREETING = 1 << 16
_START_ONE = "start one with `dask scheduler`, and give the address that it prints"
_SET_TLS = "set distributed.comm.tls in Dask's configuration as the scheduler has it"


def connected(scheduler: str) -> Client:
    """Return a client of a scheduler that has workers.

    Args:
        scheduler: `tcp://HOST:PORT`; or `tls://HOST:PORT`, with the certificates that Dask's
            configuration names.

    Raises:
        UsageError: no scheduler answers at this address, or TLS fails.
        WorkerError: the scheduler has no workers, or another version of Dask.
    """
    from distributed import Client  # noqa: PLC0415  (an extra)

    why, remedy = "", _START_ONE
    try:
        security = _security(scheduler)
        _check_greeting(scheduler, security)
        client = Client(  # type: ignore[no-untyped-call]
            scheduler, timeout=CONNECT_S, set_as_default=False, security=security
        )
    except ssl.SSLError as error:
        why, remedy = f"TLS fails ({error.reason or error})", _SET_TLS
    except OSError:
        why = "nothing answers at this address"
    except ImportError as error:
        raise WorkerError(
            f"cannot use the scheduler {scheduler}",
            str(error),
            "install the same version of distributed everywhere",
        ) from error
    except (AssertionError, LookupError, TypeError):  # a worker greets in the same way
        why = "the server at this address belongs to Dask, but is not a scheduler"
    except ValueError as error:
        why = str(error)
    else:
        return _with_workers(client, scheduler)
    # A half-made client closes itself when it is collected, which blocks forever if another one
    # is being made then.
    gc.collect()
    raise UsageError(f"cannot use the scheduler {scheduler}", why, remedy)


def _security(scheduler: str) -> Security:
    """Return the certificates of Dask's configuration.

    Raises:
        UsageError: the configuration does not allow this address, names no certificates, or names
            some that cannot be read.
    """
    from distributed import Security  # noqa: PLC0415  (an extra)

    try:
        security: Security = Security()  # type: ignore[no-untyped-call]
        has_certificates = _context(security) is not None
    except (OSError, ValueError) as error:  # an SSLError is an OSError, too
        raise UsageError(
            f"cannot use the scheduler {scheduler}",
            f"the certificates that Dask's configuration names cannot be read ({error})",
            _SET_TLS,
        ) from error
    is_encrypted = scheduler.startswith("tls://")
    if is_encrypted and not has_certificates:
        raise UsageError(
            f"cannot use the scheduler {scheduler}",
            "Dask's configuration names no certificates",
            "set distributed.comm.tls.ca-file and distributed.comm.tls.client.cert and .key",
        )
    if security.require_encryption and not is_encrypted:
        raise UsageError(
            f"cannot use the scheduler {scheduler}",
            "Dask's configuration demands encryption",
            "give an address that begins with tls://",
        )
    return security


def _context(security: Security) -> ssl.SSLContext | None:
    arguments = security.get_connection_args("client")  # type: ignore[no-untyped-call]
    context: ssl.SSLContext | None = arguments["ssl_context"]
    return context


def _check_greeting(scheduler: str, security: Security) -> None:
    """Check the server's greeting, reading no more bytes than Dask's own greeting has.

    Raises:
        OSError: nothing answers in time.
        ValueError: the address is malformed, or the server's greeting is not Dask's.
    """
    from distributed.comm.addressing import parse_address, parse_host_port  # noqa: PLC0415  (an extra)

    scheme, location = parse_address(scheduler)
    if scheme not in {"tcp", "tls"}:
        return
    host, port = parse_host_port(location)
    deadline = time.monotonic() + CONNECT_S
    plain = _socket(host, port, deadline)
    try:
        plain.settimeout(max(deadline - time.monotonic(), _PAUSE_S))
        connection = plain
        if scheme == "tls" and (context := _context(security)) is not None:
            name = (security.extra_conn_args or {}).get("server_hostname")
            connection = context.wrap_socket(plain, server_hostname=name)
        with connection:
            # The first eight bytes are the length of the rest.
            length = int.from_bytes(_received(connection, 8, deadline), "little")
            greeting = b""
            if length <= _MAX_GREETING:
                greeting = _received(connection, length, deadline)
    except TimeoutError:
        raise ValueError("the server at this address does not answer like Dask") from None
    finally:
        plain.close()
    if _GREETING not in greeting:
        raise ValueError("the server at this address is not a Dask scheduler")


def _socket(host: str, port: int, deadline: float) -> socket.socket:
    """Return a connection, tried again until the deadline: a cluster may just be starting."""
    while True:
        remaining_s = max(deadline - time.monotonic(), _PAUSE_S)
        try:
            return socket.create_connection((host, port), timeout=remaining_s)
        except OSError:
            if time.monotonic() + _PAUSE_S > deadline:
                raise
            time.sleep(_PAUSE_S)


def _received(connection: socket.socket, num_bytes: int, deadline: float) -> bytes:
    """Return `num_bytes` bytes, or fewer if the connection is closed.

    Raises:
        TimeoutError: they did not arrive before the deadline.
    """
    received = b""
    while len(received) < num_bytes:
        connection.settimeout(max(deadline - time.monotonic(), 0.001))
        part = connection.recv(num_bytes - len(received))
        if not part:
            break
        received += part
    return received


def _with_workers(client: Client, scheduler: str) -> Client:
    try:
        client.wait_for_workers(1, timeout=WORKERS_S)
    except TimeoutError as error:
        client.close()  # type: ignore[no-untyped-call]
        raise WorkerError(
            f"cannot use the scheduler {scheduler}",
            "it has no workers",
            f"start some with `dask worker {scheduler}`",
        ) from error
    return client
