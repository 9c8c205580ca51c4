"""Signatures of messages: Ed25519 over canonical JSON, and the fields that carry them.

A signed message has `chain`, the position of the recorded fact in the chain of the task, and `signature`. The signature
covers the text `qidpfl:KIND:` and the canonical JSON of the message without `signature` and without the fields in
`unsigned`. The same message always has the same signature.

The package `cryptography` is loaded at the first signature, so that the messages alone do not need it.
"""

import base64
import binascii
import hashlib
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

from pydantic import Field

from .chain import canonical_json
from .fields import Count, Digest, Message, Moment, Name

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

_KEY_BYTES, _SIGNATURE_BYTES = 32, 64
KeyId = Annotated[
    str, Field(pattern=r"^[0-9a-f]{16}$", description="the first 16 digits of the SHA-256 of the 32 raw bytes")
]
PublicKeyText = Annotated[str, Field(pattern=r"^[A-Za-z0-9+/]{43}=$", description="32 bytes of Ed25519 in base64")]
SignatureText = Annotated[str, Field(pattern=r"^[A-Za-z0-9+/]{86}==$", description="64 bytes of Ed25519 in base64")]


class WrongSignature(ValueError):
    """A signature is not of this message and key."""


class ChainPosition(Message):
    """A position in the chain of a task. `head` covers this entry and all entries before it."""

    task_id: Name
    sequence: Count
    head: Digest


class MessageSignature(Message):
    """The signature of a message, and the id of the key that made it."""

    key_id: KeyId
    value: SignatureText


class SignedMessage(Message):
    """A message that the coordinator signs. Both fields are null if the coordinator has no chain or no key."""

    kind: ClassVar[str] = ""
    unsigned: ClassVar[frozenset[str]] = frozenset()

    chain: ChainPosition | None = Field(default=None, description="where the chain of the task records it")
    signature: MessageSignature | None = Field(
        default=None, description="Ed25519 over the rest of the message as served"
    )

    def signed_part(self) -> dict[str, Any]:
        """Everything that the signature covers, as JSON values, with fields that this version does not know."""
        return {name: value for name, value in self.facts().items() if name not in ("signature", *self.unsigned)}


Signed = TypeVar("Signed", bound=SignedMessage)


class ChainHead(SignedMessage):
    """The head of a chain, signed: keep it outside the coordinator to find out later whether entries were cut off."""

    kind: ClassVar[str] = "head"


class PublicKeyInfo(Message):
    """A key of the coordinator. Each key but the first is endorsed by the one before it, unless that was lost."""

    key_id: KeyId
    public_key: PublicKeyText
    created_at: Moment
    endorsement: MessageSignature | None = Field(default=None, description="of the key by the key before it")


class KeyList(Message):
    """The keys of a coordinator, oldest first. The last one signs."""

    keys: tuple[PublicKeyInfo, ...] = Field(strict=False, max_length=1000)


class SigningKey:
    """A private key. Its repr does not show it."""

    def __init__(self, private: "Ed25519PrivateKey") -> None:
        self._private = private
        self.public_key = base64.b64encode(private.public_key().public_bytes_raw()).decode()
        self.key_id = key_id_of(self.public_key)

    @classmethod
    def new(cls) -> "SigningKey":
        """A new random key."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def from_pem(cls, text: bytes) -> "SigningKey":
        """The key of a PEM file without password. Raises ValueError."""
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        try:
            key = load_pem_private_key(text, password=None)
        except (TypeError, UnsupportedAlgorithm) as error:
            raise ValueError("not a PEM file of an Ed25519 key without password") from error
        if not isinstance(key, Ed25519PrivateKey):
            raise ValueError("not an Ed25519 key")
        return cls(key)

    def pem(self) -> str:
        """The private key as PEM (PKCS #8), which openssl reads too."""
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

        return self._private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode().strip()

    def sign(self, kind: str, facts: Any) -> MessageSignature:
        """The signature of these facts."""
        value = base64.b64encode(self._private.sign(_signed_bytes(kind, facts))).decode()
        return MessageSignature.model_construct(key_id=self.key_id, value=value)

    def signed(self, message: Signed) -> Signed:
        """The message with its signature; unchanged if the chain does not record it."""
        if message.chain is None:
            return message
        return message.model_copy(update={"signature": self.sign(message.kind, message.signed_part())})

    def endorse(self, public_key: str) -> MessageSignature:
        """The signature of the key that replaces this one."""
        return self.sign("key", {"public_key": public_key})


def key_id_of(public_key: str) -> str:
    """The id of a public key. Raises ValueError if the text is not one."""
    return hashlib.sha256(_decoded(public_key, _KEY_BYTES)).hexdigest()[:16]


def verify(public_key: str, kind: str, facts: Any, signature: MessageSignature) -> None:
    """Check a signature of facts, which must be JSON values.

    Raises:
        WrongSignature: the signature is not of these facts, this kind and this key.
    """
    verify_bytes(public_key, kind, canonical_json(facts), signature)


def verify_bytes(public_key: str, kind: str, canonical: bytes, signature: MessageSignature) -> None:
    """Check a signature of facts that are given as canonical JSON. Raises as `verify` does."""
    from cryptography.exceptions import InvalidSignature

    key_id, key = _loaded(public_key)
    if signature.key_id != key_id:
        raise WrongSignature(f"signed with key {signature.key_id}, not with {key_id}")
    try:
        key.verify(_decoded(signature.value, _SIGNATURE_BYTES), _prefix(kind) + canonical)
    except InvalidSignature:
        raise WrongSignature(f"the signature with key {signature.key_id} does not fit the message") from None


@lru_cache(maxsize=16)
def _loaded(public_key: str) -> "tuple[str, Ed25519PublicKey]":
    """The id of a public key, and the key."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    return key_id_of(public_key), Ed25519PublicKey.from_public_bytes(_decoded(public_key, _KEY_BYTES))


def verify_message(public_key: str, message: SignedMessage) -> None:
    """Check the signature of a message that has one. Raises `WrongSignature`."""
    if message.signature is None:
        raise WrongSignature("the message has no signature")
    verify(public_key, message.kind, message.signed_part(), message.signature)


def successors(known: str, keys: KeyList) -> list[PublicKeyInfo]:
    """The keys that replaced a known key, oldest first: each is endorsed by the one before it.

    Raises:
        WrongSignature: the known key is not in the list, or an endorsement is missing or wrong.
    """
    place = next((place for place, key in enumerate(keys.keys) if key.public_key == known), None)
    if place is None:
        raise WrongSignature("the coordinator does not know the pinned key any more")
    followers = list(keys.keys[place + 1 :])
    for key in followers:
        if key.endorsement is None:
            raise WrongSignature(f"key {key.key_id} is not endorsed by the key before it")
        verify(known, "key", {"public_key": key.public_key}, key.endorsement)
        known = key.public_key
    return followers


def _signed_bytes(kind: str, facts: Any) -> bytes:
    return _prefix(kind) + canonical_json(facts)


def _prefix(kind: str) -> bytes:
    return f"qidpfl:{kind}:".encode()


def _decoded(text: str, length: int) -> bytes:
    try:
        data = base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ValueError("not base64") from None
    if len(data) != length:
        raise ValueError(f"not {length} bytes")
    return data
