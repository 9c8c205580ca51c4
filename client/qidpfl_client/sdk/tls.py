"""TLS files of a connection: the certificate of the client, and the CA that has signed the coordinator's."""

import ssl
from dataclasses import dataclass
from pathlib import Path

import httpx

from ..errors import Misconfigured

# What OpenSSL says when the other side answers in plain text.
_NOT_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG")


@dataclass(frozen=True)
class TlsFiles:
    """Files in PEM.

    Args:
        certificate: the certificate of this client, for mutual TLS.
        key: its key, without password; None if the file of the certificate holds it too.
        server_ca: the CA of the coordinator; None: the CAs of the system.
    """

    certificate: Path | None = None
    key: Path | None = None
    server_ca: Path | None = None

    def __post_init__(self) -> None:
        if self.key is not None and self.certificate is None:
            raise Misconfigured("a key needs its certificate: give --client-cert too")

    def context(self) -> ssl.SSLContext:
        """The settings of TLS with these files. Raises `Misconfigured` if one of them cannot be used."""
        try:
            context = httpx.create_ssl_context() if self.server_ca is None else _trusting(self.server_ca)
        except (OSError, ssl.SSLError) as error:
            raise Misconfigured(f"{self.server_ca} has no CA certificate in PEM: {_reason(error)}") from error
        if self.certificate is not None:
            try:
                # Without the password OpenSSL would ask for one on the terminal.
                context.load_cert_chain(self.certificate, self.key, password="")
            except (OSError, ssl.SSLError) as error:
                files = " and ".join(str(path) for path in (self.certificate, self.key) if path is not None)
                raise Misconfigured(
                    f"{files}: not a certificate and its key, in PEM and without password: {_reason(error)}"
                ) from error
        return context


def _trusting(server_ca: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=server_ca)


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return str(error.reason or error)
    return error.strerror or str(error)


def tls_problem(error: BaseException) -> str | None:
    """What is wrong with the encryption, and what to do; None if that is not the reason of an error.

    These errors stay until somebody acts, so a client that has never had an answer does not try again.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            reason = getattr(cause, "verify_message", cause)
            return (
                f"its certificate does not verify ({reason}): name the CA that has signed it with --server-ca FILE.pem,"
                " or use the name for which it was made"
            )
        if isinstance(cause, ssl.SSLError) and cause.reason in _NOT_TLS:
            return "there is no TLS at this port: the coordinator speaks plain http; use http://, or start it with TLS"
        cause = cause.__cause__ or cause.__context__
    return None


def next_step(error: BaseException, address: str) -> str:
    """What to look at when a coordinator has never answered: a text in brackets, or nothing."""
    if isinstance(error, httpx.ConnectError):
        return " (is the coordinator running, and is the address right?)"
    # The other side has taken the connection and closed it.
    if not isinstance(error, httpx.RemoteProtocolError | httpx.ReadError):
        return ""
    if address.startswith("https:"):
        return " (it may require a certificate of this client: --client-cert)"
    return " (this port may speak https: use https://)"
