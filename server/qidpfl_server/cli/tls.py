"""TLS files of the server: checked before the start, and read again with the token files on SIGHUP."""

import asyncio
import signal
import ssl
import sys
from collections.abc import Callable
from enum import StrEnum
from typing import Any

import structlog
import uvicorn
from uvicorn.config import create_ssl_context

from ..errors import CoordinatorError
from ..ops.tokens import Secrets, load_secrets
from ..settings import Settings

_log = structlog.get_logger()


class ClientCertificates(StrEnum):
    """Whether a connection needs a client certificate, if there is a CA for them."""

    OPTIONAL = "optional"
    REQUIRED = "required"


def check_tls(settings: Settings) -> None:
    """Raise if only one TLS file is set, or if the files are missing or invalid."""
    if (settings.tls_cert is None) != (settings.tls_key is None):
        raise CoordinatorError("set both tls_cert and tls_key, or none of them")
    for path in (settings.tls_cert, settings.tls_key):
        if path is not None and not path.is_file():
            raise CoordinatorError(f"{path} is not a file")
    if settings.tls_cert is not None:
        try:
            # Without this argument OpenSSL would ask for a password on a terminal that a service does not have.
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(settings.tls_cert, settings.tls_key, password="")
        except ssl.SSLError as error:
            raise CoordinatorError(
                f"{settings.tls_cert} and {settings.tls_key} are not a certificate and its key, in PEM and without"
                f" password ({error.reason or error})"
            ) from error
    _check_client_ca(settings)


def _check_client_ca(settings: Settings) -> None:
    if settings.tls_client_ca is None:
        if settings.certificate_task_names:
            raise CoordinatorError("certificate_tasks needs tls_client_ca, which says whose certificates are valid")
        return
    if settings.tls_cert is None:
        raise CoordinatorError("tls_client_ca needs tls_cert and tls_key: certificates of clients need https")
    if not settings.tls_client_ca.is_file():
        raise CoordinatorError(f"{settings.tls_client_ca} is not a file")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(settings.tls_client_ca)
    except ssl.SSLError as error:
        raise CoordinatorError(
            f"{settings.tls_client_ca} has no CA certificate in PEM ({error.reason or error})"
        ) from error


def client_certificates(settings: Settings) -> dict[str, Any]:
    """The options of uvicorn with which connections may or must have a certificate of the clients' CA."""
    if settings.tls_client_ca is None:
        return {}
    required = settings.tls_client_certs == "required"
    return {
        "ssl_ca_certs": str(settings.tls_client_ca),
        "ssl_cert_reqs": ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL,
    }


def reload_on_hangup(
    settings: Settings, secrets: Secrets, config: uvicorn.Config, use_tls: Callable[[ssl.SSLContext], None]
) -> None:
    """Read the token files and the TLS files again at every SIGHUP. Call it on the event loop.

    `use_tls` gets the new TLS settings, for connections from then on.

    On a terminal SIGHUP means that the terminal was closed: there it ends the process, as by default.
    """
    if sys.stderr.isatty():
        return
    loop = asyncio.get_running_loop()
    running: set[asyncio.Task[None]] = set()

    def reload() -> None:
        task = loop.create_task(_reload(settings, secrets, config, use_tls))
        running.add(task)
        task.add_done_callback(running.discard)

    loop.add_signal_handler(signal.SIGHUP, reload)


async def _reload(
    settings: Settings, secrets: Secrets, config: uvicorn.Config, use_tls: Callable[[ssl.SSLContext], None]
) -> None:
    """On an error everything stays as it was, and the log says why."""
    try:
        read = await asyncio.to_thread(load_secrets, settings)
        await asyncio.to_thread(check_tls, settings)
        # New settings instead of a change of those in use: connections are being set up with them.
        context = None if config.ssl is None else await asyncio.to_thread(_new_context, config)
    except (CoordinatorError, OSError, ValueError) as error:
        _log.error("reload_failed", reason=str(error), instead="the earlier tokens and certificate stay in use")
        return
    if context is not None:
        use_tls(context)
    changed = secrets.replace(read)
    _log.info("reloaded", roles=changed, certificate=context is not None)


def _new_context(config: uvicorn.Config) -> ssl.SSLContext:
    assert config.ssl_certfile is not None
    return create_ssl_context(
        config.ssl_certfile,
        config.ssl_keyfile,
        None,
        config.ssl_version,
        config.ssl_cert_reqs,
        config.ssl_ca_certs,
        config.ssl_ciphers,
    )
