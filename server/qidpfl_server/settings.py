"""Settings of the coordinator: read once, from the environment (`QIDPFL_*`) and the command line."""

from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """Everything an operator can set, with its default."""

    model_config = SettingsConfigDict(env_prefix="QIDPFL_", env_ignore_empty=True, frozen=True, extra="ignore")

    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=0, le=65535)
    state_dir: Path = Field(default=Path("qidpfl-state"), description="database, blobs and secrets, unless set apart")
    store_url: str | None = Field(default=None, description="sqlite:///file or postgresql://…; default: in state_dir")
    blob_dir: Path | None = Field(default=None, description="folder of models and updates; default: in state_dir")
    blobs: str | None = Field(
        default=None,
        description="bucket of models and updates: s3://bucket/prefix, gs://… or az://…; default: in blob_dir",
    )
    code_dir: Path | None = Field(default=None, description="enrolment codes of serve --preset; default: state_dir")
    secrets_dir: Path | None = Field(
        default=None, description="folder of the tokens and the signing key, only read; default: state_dir"
    )
    signing_key: Path | None = Field(default=None, description="file of the signing key; default: in secrets_dir")
    shared_code: Path | None = Field(
        default=None, description="file with the enrolment code for the task of serve --preset; default: a new code"
    )
    results_dir: Path | None = Field(
        default=None, description="where tasks are written to when they end; default: nowhere"
    )
    begin_anew: str | None = Field(
        default=None, description="the command that starts a new task after the end of one; default: serve --task"
    )
    tensorboard: Path | None = Field(default=None, description="folder of event files for TensorBoard; default: none")
    mlflow: str | None = Field(default=None, description="tracking URI of MLflow; default: none")
    traces: bool = Field(default=False, description="OpenTelemetry traces, to where the OTEL_* variables say")
    data_dir: Path | None = Field(default=None, description="data sets to evaluate with; default: the cache folder")
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = Field(default=None, description="CA of clients' certificates; default: no mutual TLS")
    tls_client_certs: Literal["optional", "required"] = Field(
        default="optional", description="with tls_client_ca: whether every connection needs a certificate"
    )
    certificate_tasks: str | None = Field(
        default=None, description="names of tasks, or *, in which a certificate replaces the enrolment code"
    )
    forwarded_allow_ips: str | None = Field(default=None, description="proxies whose X-Forwarded headers are trusted")
    open_docs: bool | None = Field(default=None, description="OpenAPI and metrics without token; default: on loopback")
    log_format: Literal["auto", "json", "pretty"] = "auto"
    header_timeout_s: float = Field(default=10.0, gt=0)
    body_timeout_s: float = Field(default=120.0, gt=0)
    shutdown_timeout_s: int = Field(default=10, gt=0)
    drain_s: float = Field(
        default=0.0, ge=0, description="seconds between SIGTERM and the end of the listener; /readyz says 503 meanwhile"
    )
    min_bytes_per_s: int = Field(default=16_384, gt=0, description="slowest upload and download that is waited for")
    max_connections: int = Field(default=4096, gt=0, description="open connections; fewer if files are short")
    max_connections_per_address: int = Field(default=2048, gt=0, description="of one address, unless behind a proxy")
    max_requests: int = Field(default=512, gt=0, description="requests at once, long polls not counted")
    max_requests_per_client: int = Field(default=16, gt=0, description="of one token; the same for its long polls")
    requests_per_s_per_client: float = Field(
        default=50.0, gt=0, description="of one client's token, after ten seconds' worth at once"
    )
    requests_per_s_per_address: float = Field(
        default=100.0, gt=0, description="without a client's token, after ten seconds' worth at once"
    )
    enrolments_per_s: float = Field(default=50.0, gt=0, description="of one task, after ten seconds' worth at once")
    deferred_evaluation_s: float = Field(
        default=0.05, ge=0, description="an evaluation that takes so long runs after the settlement; inf: none does"
    )
    max_uploads: int = Field(default=32, gt=0, description="upload bodies read at once; the others wait")

    @property
    def database_url(self) -> str:
        return self.store_url or f"sqlite:///{self.state_dir / 'coordinator.db'}"

    @property
    def blob_folder(self) -> Path:
        return self.blob_dir or self.state_dir / "blobs"

    @property
    def code_folder(self) -> Path:
        return self.code_dir or self.state_dir

    @property
    def secrets_folder(self) -> Path:
        return self.secrets_dir or self.state_dir

    @property
    def certificate_task_names(self) -> frozenset[str]:
        """The names of the tasks in which a certificate replaces the enrolment code; `*` stands for all."""
        return frozenset(filter(None, (name.strip() for name in (self.certificate_tasks or "").split(","))))

    @property
    def signing_key_file(self) -> Path:
        return self.signing_key or self.secrets_folder / "signing.key"

    @property
    def docs_are_open(self) -> bool:
        if self.open_docs is not None:
            return self.open_docs
        return self.host in ("127.0.0.1", "localhost", "::1")
