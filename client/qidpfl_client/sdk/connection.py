"""`connect`: the HTTP client for one coordinator."""

import ipaddress
from contextlib import nullcontext
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any

import httpx

from ..errors import InsecureTransport, Misconfigured
from .deadlines import bounded
from .direct import DirectTransport, Waiting
from .tls import TlsFiles

TIMEOUT_S = 30.0


def connect(
    url: str,
    *,
    insecure: bool = False,
    timeout_s: float = TIMEOUT_S,
    connections: int = 10,
    tls: TlsFiles | None = None,
    waiting: Waiting = nullcontext,
) -> httpx.Client:
    """An HTTP client for one coordinator. It verifies certificates, follows no redirects and keeps no cookies.

    Proxies and certificates of the environment are used for https only: over plain http a proxy could read the token.

    Args:
        url: the address of the coordinator, without user name, query or fragment.
        insecure: allow plain http to another machine.
        timeout_s: the timeout of each read and write. A whole call may take this time, plus the wait of a long poll,
            plus the time of its largest answer at the slowest accepted rate.
        connections: the largest number of open connections; each long poll needs one.
        tls: the certificate of this client, or the CA of the coordinator; for https only.
        waiting: the block in which a thread waits for the coordinator. A fleet lets another member compute meanwhile.

    Raises:
        Misconfigured: the address is not a usable URL, or a file of `tls` cannot be used.
        InsecureTransport: plain http to another machine, without `insecure`.

    >>> with connect("https://coordinator.example:8443") as http:
    ...     http.base_url
    URL('https://coordinator.example:8443')
    """
    address = _address(url)
    if address.scheme == "http" and not insecure and not _is_loopback(address.host):
        raise InsecureTransport(
            f"plain http to {address.host}: others could read tokens and updates; use https, or --insecure in a network"
            " that you trust"
        )
    if tls is not None and address.scheme != "https":
        raise Misconfigured("certificates need an address with https")
    limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
    http = CoordinatorClient(
        base_url=address,
        verify=True if tls is None else tls.context(),
        timeout=httpx.Timeout(timeout_s, connect=min(timeout_s, 10.0)),
        limits=limits,
        transport=DirectTransport(address, limits=limits, waiting=waiting) if address.scheme == "http" else None,
        follow_redirects=False,
        trust_env=address.scheme == "https",
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
        headers={"User-Agent": "qidpfl-client"},
    )
    http.waiting = waiting
    return bounded(http)


class CoordinatorClient(httpx.Client):
    """An httpx client without the steps of a request that a call to a coordinator never has.

    It sends no credentials of its own, follows no redirect, keeps no cookie and has no hooks: together these cost as
    much time as the rest of a small request.
    """

    waiting: Waiting = nullcontext

    def send(self, request: httpx.Request, *, stream: bool = False, **options: Any) -> httpx.Response:
        if not stream:
            return super().send(request, stream=stream, **options)
        if self.is_closed:
            raise RuntimeError("the connection to the coordinator is closed")
        response = self._transport_for_url(request.url).handle_request(request)
        response.request = request
        return response


def _address(url: str) -> httpx.URL:
    try:
        address = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise Misconfigured("the address of the coordinator is not a URL") from error
    if address.scheme not in ("http", "https") or not address.host:
        raise Misconfigured("the address of the coordinator must be like https://host:port")
    if address.userinfo or address.query or address.fragment:
        # httpx would send a user name as the credentials, instead of the token.
        raise Misconfigured("the address of the coordinator must have no user name, query or fragment")
    return address


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
