"""The signing key of the coordinator: its file, the record of its public key in the store, and its replacement."""

import os
from pathlib import Path

from qidpfl_shared.durable_files import fsync_dir
from qidpfl_shared.protocol.chain import STORE_CHAIN
from qidpfl_shared.protocol.signatures import MessageSignature, PublicKeyInfo, SigningKey

from ..clock import Micros, SystemClock, as_datetime
from ..errors import CoordinatorError, DamagedState
from ..settings import Settings
from ..store.store import Store
from ..store.transaction import Transaction
from .tokens import create_private


def load_key(path: Path) -> SigningKey | None:
    """The key in a file; None if there is no file. Raises `DamagedState` if the file is not a key."""
    try:
        return SigningKey.from_pem(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise DamagedState(f"{path} does not hold a signing key: restore it from a backup ({error})") from error


def use_key(settings: Settings, store: Store) -> None:
    """Let the store sign with the key of these settings, if it is the one that the store has recorded.

    A process without it can read the store. If it writes to a chain, the store refuses.
    """
    key = load_key(settings.signing_key_file)
    keys = store.read(lambda tx: tx.keys.all()).keys
    store.key = key if key is not None and keys and keys[-1].public_key == key.public_key else None


def prepare_key(settings: Settings, store: Store) -> None:
    """Create the key at the first start and record it in the store.

    Raises:
        DamagedState: the store has another key.
    """
    path = settings.signing_key_file
    _finish_rotation(path, _next(path), store)
    keys = store.read(lambda tx: tx.keys.all()).keys
    key = load_key(path)
    if key is None and keys:
        raise DamagedState(
            f"the store is signed with key {keys[-1].key_id}, but {path} is missing: restore the file, name it with"
            " QIDPFL_SIGNING_KEY, or, if it is lost, run `qidpfl-server keys rotate --lost`"
        )
    if key is None and settings.secrets_dir is not None and settings.signing_key is None:
        raise CoordinatorError(
            f"{path} is missing: `qidpfl-server keys new` makes a folder for QIDPFL_SECRETS_DIR, with a signing key"
        )
    if key is None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        create_private(path, SigningKey.new().pem())
        # Another process may have created it at the same time.
        key = load_key(path)
    assert key is not None
    record_key(store, key, path)


def record_key(store: Store, key: SigningKey, path: Path = Path("signing.key"), now: Micros | None = None) -> None:
    """Record the first key of a store and sign all heads with it; no effect if it is already recorded.

    Raises:
        DamagedState: the store has another key.
    """
    at = SystemClock().now() if now is None else now
    store.key = key
    store.write(lambda tx: _record(tx, key, path, at))


def _record(tx: Transaction, key: SigningKey, path: Path, now: Micros) -> None:
    tx.chain.lock(STORE_CHAIN)
    known = tx.keys.all().keys
    if not known:
        tx.keys.add(_info(key, now))
    elif known[-1].public_key != key.public_key:
        raise DamagedState(
            f"the store is signed with key {known[-1].key_id}, but {path} holds key {key.key_id}: all coordinators of a"
            " store share one signing key; copy the file of the others, or name it with QIDPFL_SIGNING_KEY"
        )
    for task_id in tx.chain.unsigned():
        tx.chain.put_head(task_id, key)


def rotate_key(settings: Settings, store: Store, *, lost: bool = False) -> tuple[PublicKeyInfo, Path]:
    """Replace the key by a new one, which the old one endorses, and sign all heads with it.

    With `lost` the old key is not needed, and the new one is not endorsed: clients that have pinned the old key refuse
    it. The new key is written to a second file first, so that a crash at any point leaves a key that fits the store.

    Raises:
        CoordinatorError: the old key is missing and `lost` is not given, or the store has no key yet.
    """
    path = settings.signing_key_file
    following = _next(path)
    if not os.access(path.parent, os.W_OK):
        raise CoordinatorError(
            f"{path.parent} cannot be written: rotate the key in a copy of this folder, then replace it"
        )
    _finish_rotation(path, following, store)
    known = store.read(lambda tx: tx.keys.all()).keys
    if not known:
        raise CoordinatorError("the store has no signing key yet: `serve` creates it at its first start")
    old = load_key(path)
    has_old = old is not None and old.public_key == known[-1].public_key
    if not has_old and not lost:
        raise CoordinatorError(
            f"{path} does not hold key {known[-1].key_id} of the store: restore it; if it is lost, add --lost"
        )
    new = SigningKey.new()
    following.unlink(missing_ok=True)
    create_private(following, new.pem())
    endorsement = old.endorse(new.public_key) if old is not None and has_old else None
    info = _info(new, SystemClock().now(), endorsement)
    store.key = new
    store.write(lambda tx: _replace(tx, new, info))
    _finish_rotation(path, following, store)
    return info, path


def _replace(tx: Transaction, new: SigningKey, info: PublicKeyInfo) -> None:
    tx.chain.lock(STORE_CHAIN)
    tx.keys.add(info)
    for task_id in tx.chain.all():
        tx.chain.put_head(task_id, new)


def _next(path: Path) -> Path:
    """Where a new key is until the store has recorded it."""
    return path.with_name(f"{path.name}.next")


def _finish_rotation(path: Path, following: Path, store: Store) -> None:
    """Give the new key its name, if the store has recorded it."""
    key = load_key(following)
    known = store.read(lambda tx: tx.keys.all()).keys
    if key is not None and known and known[-1].public_key == key.public_key:
        following.replace(path)
        fsync_dir(path.parent)


def _info(key: SigningKey, now: Micros, endorsement: MessageSignature | None = None) -> PublicKeyInfo:
    return PublicKeyInfo(
        key_id=key.key_id, public_key=key.public_key, created_at=as_datetime(now), endorsement=endorsement
    )
