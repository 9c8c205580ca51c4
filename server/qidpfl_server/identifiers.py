"""Opaque ids and secrets. A separate module because the use cases, the token files and the API all need it."""

import hashlib
import secrets


def new_id() -> str:
    """An opaque id that cannot be guessed or counted."""
    return secrets.token_hex(12)


def new_request_id() -> str:
    """The name of one request in its answer and in the log."""
    return secrets.token_hex(8)


def new_secret() -> str:
    """256 bits, as text that fits into a header."""
    return secrets.token_urlsafe(32)


def hash_secret(secret: str) -> str:
    """The stored form of a secret. 256 random bits need no salt and no slow hash."""
    return hashlib.sha256(secret.encode()).hexdigest()


def same_secret(one: str, other: str) -> bool:
    """Compare in constant time."""
    return secrets.compare_digest(one.encode(), other.encode())
