"""What a client of a bucket refuses before it sends a request, and what it says when none arrives."""

import sys
import time
from pathlib import Path

import pytest

from qidpfl_server.errors import CoordinatorError, ObjectStoreFailure
from qidpfl_server.ops.open_store import opened_store
from qidpfl_server.settings import Settings
from qidpfl_server.store.blobs.object_client import ObjectClient

KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    "url",
    [
        *("", "bucket", "/a/folder", "file:///a/folder", "ftp://bucket/prefix", "https://bucket.s3.amazonaws.com"),
        *("s3:", "s3://", "s3:///prefix", "s3://bucket?key=mine-only", "s3://bucket/#mine-only", "s3://[bucket"),
        *("s3://me:mine-only@bucket/prefix", "s3://host:9000/bucket"),
    ],
)
def test_a_url_that_names_no_bucket_is_refused_with_the_forms_and_is_not_shown(url: str) -> None:
    with pytest.raises(CoordinatorError, match=r"^QIDPFL_BLOBS .*s3://bucket/prefix") as refusal:
        ObjectClient.open(url)
    assert "mine-only" not in str(refusal.value) and "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/", "s3://bucket"),
        ("s3://bucket/one/two/", "s3://bucket/one/two"),
        ("gs://bucket/prefix", "gs://bucket/prefix"),
        ("az://container/prefix", "az://container/prefix"),
    ],
)
def test_a_bucket_of_each_kind_is_opened_without_a_request(
    url: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    assert ObjectClient.open(url).place == place


def test_what_a_bucket_lacks_is_one_line() -> None:
    with pytest.raises(CoordinatorError, match=r"cannot be used: .*Account must be specified") as refusal:
        ObjectClient.open("az://container/prefix")
    assert "\n" not in str(refusal.value)


def test_a_bucket_without_obstore_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("obstore", "obstore.exceptions", "obstore.store"):
        monkeypatch.setitem(sys.modules, name, None)
    with (
        pytest.raises(CoordinatorError, match=r"pip install 'qidpfl-server\[objectstore\]'"),
        opened_store(Settings(state_dir=tmp_path, blobs="s3://bucket"), create=True),
    ):
        pass


def test_a_folder_does_not_need_obstore(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("obstore", "obstore.exceptions", "obstore.store"):
        monkeypatch.setitem(sys.modules, name, None)
    with opened_store(Settings(state_dir=tmp_path), create=True) as store:
        assert store.blobs.place == str(tmp_path / "blobs")


@pytest.mark.slow
def test_requests_to_an_object_store_that_is_away_end_soon_and_name_it_for_the_operator_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    client, started = ObjectClient.open("s3://bucket/prefix"), time.monotonic()
    with pytest.raises(ObjectStoreFailure) as failure:
        client.create("name", b"bytes")
    with pytest.raises(ObjectStoreFailure):
        client.check("name")
    assert time.monotonic() - started < 20
    assert failure.value.detail == "the object store fails" and failure.value.retry_after_s
    assert "127.0.0.1" in failure.value.reason and str(failure.value).count("\n") == 0
