"""Opaque ids, secrets, and how secrets are kept."""

import hashlib
import secrets


def new_id() -> str:
    """An opaque id that nobody can guess or count."""
    return secrets.token_hex(12)


def new_secret() -> str:
    """256 bits, as text that fits into a header."""
    return secrets.token_urlsafe(32)


def hash_secret(secret: str) -> str:
    """What is stored of a secret. Its 256 random bits need no salt and no slow hash."""
    return hashlib.sha256(secret.encode()).hexdigest()


def same_secret(one: str, other: str) -> bool:
    """Comparison in constant time."""
    return secrets.compare_digest(one.encode(), other.encode())
