"""Content-addressed bytes: the name of a blob is the SHA-256 of its bytes, which are checked at every read.

port            what the server needs of a blob store; small blobs are rows of the database in both stores
staged          a blob that is being written, in a local file
folder          blobs as files of one folder
object_store    blobs as objects of a bucket
object_client   the requests to a bucket, with bounded retries, and their errors
"""

from .folder import FolderBlobs
from .port import Blobs, RemovalClaims
from .staged import StagedBlob, translated_full_disk

__all__ = ["Blobs", "FolderBlobs", "RemovalClaims", "StagedBlob", "translated_full_disk"]
