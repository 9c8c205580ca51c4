"""Every combination of Compose files is valid, and has the expected settings."""

import re
from itertools import combinations
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from support.containers import ROOT, Testbed

pytestmark = pytest.mark.live

OVERLAYS = ("gpu", "mnist", "postgres", "replicas")


def configured(*overlays: str, **environment: str) -> dict[str, Any]:
    said = Testbed("qidpfl-config", overlays=overlays, environment=environment).done("config")
    found: dict[str, Any] = yaml.safe_load(said)["services"]
    return found


@pytest.mark.parametrize(
    "overlays",
    [chosen for count in range(4) for chosen in combinations(OVERLAYS, count)],
    ids=lambda o: "+".join(o) or "plain",
)
def test_every_combination_is_valid_and_hardened(overlays: tuple[str, ...]) -> None:
    for name, service in configured(*overlays).items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["read_only"] is True, name
        assert [option.split(":")[0] for option in service["security_opt"]] == ["no-new-privileges"], name
        assert service["mem_limit"] and service["pids_limit"], name
        assert service["restart"].startswith("on-failure"), name


def test_clients_get_the_gpus_and_the_cuda_build_of_torch() -> None:
    client = configured("gpu")["client"]
    (device,) = client["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])
    assert "/cu" in client["build"]["args"]["TORCH_INDEX"]
    assert client["environment"]["QIDPFL_DEVICE"] == "cuda"


def test_the_data_are_read_only_for_all_services_but_the_download() -> None:
    services = configured("mnist")
    for name in ("client", "coordinator"):
        assert services[name]["environment"]["QIDPFL_DATA_DIR"] == "/data"
        assert [read_only(volume) for volume in services[name]["volumes"] if target(volume) == "/data"] == [True]
    assert [read_only(volume) for volume in services["data"]["volumes"]] == [False]


def test_only_coordinators_reach_the_database() -> None:
    services = configured("postgres")
    on_it = {name for name, service in services.items() if "store" in (service.get("networks") or {})}
    assert on_it == {"postgres", "coordinator", "coordinator-2"}
    assert services["client"]["environment"]["QIDPFL_SERVER"] == "http://proxy:8080"


def test_replicas_share_no_folder_that_they_write_to() -> None:
    services = configured("replicas")
    replicas = [services[name] for name in ("coordinator", "coordinator-2", "coordinator-3")]
    for name, service in services.items():
        on_it = "store" in (service.get("networks") or {})
        assert on_it == (name in ("postgres", "seaweedfs") or name.startswith("coordinator"))
    written = [
        {source(volume) for volume in replica["volumes"] if not read_only(volume)} - {"results"} for replica in replicas
    ]
    assert written[1] == written[2] == set()
    assert len({replica["environment"]["QIDPFL_BLOBS"] for replica in replicas}) == 1
    assert services["client"]["environment"]["QIDPFL_SERVER"] == "http://proxy:8080"


@pytest.mark.parametrize(
    "overlays", [(), *((name,) for name in OVERLAYS)], ids=lambda chosen: "".join(chosen) or "plain"
)
def test_the_example_of_settings_changes_nothing(overlays: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    lines = (ROOT / ".env.example").read_text().splitlines()
    example = dict(line.split("=", 1) for line in lines if line.startswith("TESTBED_"))
    for name in example:
        monkeypatch.delenv(name, raising=False)
    assert configured(*overlays, **example) == configured(*overlays, TESTBED_PROXY_PORT="8090")


def test_the_example_lists_every_variable_of_the_compose_files() -> None:
    files = [ROOT / "docker-compose.yml", *(ROOT / f"docker-compose.{name}.yml" for name in OVERLAYS)]
    used = {name for file in files for name in re.findall(r"\$\{(\w+)", file.read_text())}
    assert used <= set(re.findall(r"^(\w+)=", (ROOT / ".env.example").read_text(), re.MULTILINE))


def target(volume: Any) -> str:
    return str(volume["target"] if isinstance(volume, dict) else volume.split(":")[-1 if volume.count(":") < 2 else 1])


def source(volume: Any) -> str:
    return str(volume["source"] if isinstance(volume, dict) else volume.split(":")[0]).rpartition("/")[2]


def read_only(volume: Any) -> bool:
    return bool(volume.get("read_only")) if isinstance(volume, dict) else volume.endswith(":ro")
