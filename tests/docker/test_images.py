"""The content of the images."""

import json

import pytest

from support.containers import ROOT, output

pytestmark = pytest.mark.live

SERVER, CLIENT, BASE = "qidpfl-server", "qidpfl-client", "python:3.11-slim"
MEGABYTE = 1_000_000


def size(image: str) -> int:
    found: int = json.loads(output("docker", "image", "inspect", image))[0]["Size"]
    return found


def inside(image: str, script: str) -> str:
    return output("docker", "run", "--rm", "--network=none", "--entrypoint", "sh", image, "-c", script)


def python(image: str, code: str) -> str:
    return output("docker", "run", "--rm", "--network=none", "--entrypoint", "python", image, "-c", code)


@pytest.fixture(autouse=True)
def built(images: None) -> None:
    """All tests here inspect the images."""


def test_the_server_image_is_small_without_evaluation_by_torch() -> None:
    assert size(SERVER) - size(BASE) < 400 * MEGABYTE


def test_the_client_image_is_small_with_torch_for_the_processor() -> None:
    assert size(CLIENT) < 1500 * MEGABYTE
    assert python(CLIENT, "import torch; print(torch.version.cuda)").strip() == "None"


@pytest.mark.parametrize(("image", "own", "other"), [(SERVER, "server", "client"), (CLIENT, "client", "server")])
def test_an_image_has_no_code_of_the_other_component(image: str, own: str, other: str) -> None:
    found = inside(image, "find / -xdev -name 'qidpfl_*' -type d 2>/dev/null; true")
    assert f"/qidpfl_{own}\n" in found and "/qidpfl_shared\n" in found and f"qidpfl_{other}" not in found


def test_the_server_image_has_no_torch() -> None:
    code = "import importlib.util as u; print([n for n in ('torch', 'torchvision', 'httpx') if u.find_spec(n)])"
    assert python(SERVER, code).strip() == "[]"


@pytest.mark.parametrize("image", [SERVER, CLIENT])
def test_an_image_has_no_build_tools_and_no_secrets(image: str) -> None:
    tools = "for tool in gcc cc make git hatchling; do command -v $tool; done; true"
    assert inside(image, tools) == ""
    names = r"-name '*.token' -o -name '*.code' -o -name '.env' -o -name '.git' -o -name '*.sqlite'"
    found = inside(image, rf"find / -xdev \( {names} \) 2>/dev/null; true").splitlines()
    base = inside(BASE, rf"find / -xdev \( {names} \) 2>/dev/null; true").splitlines()
    assert set(found) <= set(base)


@pytest.mark.parametrize("image", [SERVER, CLIENT])
def test_an_image_runs_as_a_numeric_user_and_has_a_health_check(image: str) -> None:
    settings = json.loads(output("docker", "image", "inspect", image))[0]["Config"]
    assert settings["User"] == "10001:10001"
    assert settings["Healthcheck"]["Test"][:2] == ["CMD", "python"]
    assert settings["Entrypoint"] == [image]


@pytest.mark.parametrize("image", [SERVER, CLIENT])
def test_versions_are_those_of_the_constraints(image: str) -> None:
    pinned = dict(
        line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")
    )
    code = "import importlib.metadata as m; print(*(f'{d.name}=={d.version}' for d in m.distributions()), sep='\\n')"
    installed = dict(line.split("==") for line in python(image, code).splitlines())
    shared = {name for name in installed if name in pinned} - {"pip"}
    assert len(shared) > 20
    assert {name: installed[name].partition("+")[0] for name in shared} == {name: pinned[name] for name in shared}
