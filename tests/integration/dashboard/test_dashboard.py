"""The dashboard in a real browser, against a live coordinator with its real Content-Security-Policy."""

import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.browsers import missing_browser, opened_browser
from support.coordinators import Coordinator, ScriptedClient

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.live, pytest.mark.skipif(bool(missing_browser()), reason=missing_browser() or "")]

PAGES = ("market", "clients", "privacy", "selection", "events")
AXE = Path(__file__).parents[2] / "data/axe/axe.min.js"
HOSTILE = '<img src=x onerror="globalThis.hacked=1"><b>bold</b>'
CLIENTS = 5


class Market:
    """A coordinator with a task that is played round by round."""

    def __init__(self, coordinator: Coordinator, name: str = "market") -> None:
        self.coordinator = coordinator
        overrides: dict[str, Any] = {"game": {"horizon": 30}, "rounds": {"expected_clients": CLIENTS}}
        self.task_id, code = coordinator.create_task(name, **overrides)
        skewed = (110, *(0,) * 9)
        self.clients = [
            ScriptedClient(
                coordinator.url,
                self.task_id,
                code,
                f"key-of-a-client-{name}-{number}",
                labels=skewed if number == CLIENTS - 1 else (11,) * 10,
            )
            for number in range(CLIENTS)
        ]
        for client in self.clients:
            client.enrol()
            client.profile().raise_for_status()
        self.selected = self.clients[:-1]

    def play(self) -> None:
        """One round of all selected clients."""
        for client in self.selected:
            news = client.poll()
            assert news is not None
            client.play(news["round"])

    def token(self, role: str = "viewer") -> str:
        return (self.coordinator.state_dir / f"{role}.token").read_text().strip()

    def get(self, path: str) -> Any:
        with self.coordinator.admin as http:
            return http.get(f"/v1/tasks/{self.task_id}{path}").raise_for_status().json()


@pytest.fixture(scope="module")
def market(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Market]:
    with Coordinator(tmp_path_factory.mktemp("state")) as coordinator:
        market = Market(coordinator)
        for _ in range(3):
            market.play()
        yield market


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    with opened_browser() as browser:
        yield browser


class Visit:
    """A page of the dashboard in a context of its own, which collects what the console says."""

    def __init__(self, browser: "Browser", url: str, token: str | None, **options: Any) -> None:
        self.url = f"{url}/dashboard"
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}} | options)
        self.page: Page = self.context.new_page()
        self.page.set_default_timeout(30_000)
        self.said: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text) if message.type == "error" else None)
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.goto(self.url if token is None else f"{self.url}#token={token}")

    def show(self, task_id: str, name: str) -> None:
        self.page.goto(f"{self.url}#/t/{task_id}/{name}")
        self.page.wait_for_selector(f'nav a[aria-current="page"]:text-is("{name}")')
        self.page.wait_for_function("document.querySelectorAll('main .card').length > 0")

    def text(self) -> str:
        return self.page.inner_text("main")


@pytest.fixture
def visit(browser: "Browser", market: Market) -> Iterator[Any]:
    opened: list[Visit] = []

    def start(token: str | None = "viewer", url: str | None = None, **options: Any) -> Visit:
        known = market.token(token) if token in ("viewer", "admin") else token
        opened.append(Visit(browser, url or market.coordinator.url, known, **options))
        return opened[-1]

    yield start
    for one in opened:
        one.context.close()


def test_every_page_shows_a_live_task_under_its_policy(visit: Any, market: Market) -> None:
    seen = visit()
    header = seen.page.request.get(seen.url).headers["content-security-policy"]
    assert "unsafe" not in header and "script-src 'self'" in header
    for name in PAGES:
        seen.show(market.task_id, name)
        for figure in seen.page.query_selector_all(".figure"):
            assert figure.query_selector("svg, canvas") is not None, f"{name}: {figure.inner_text()}"
    seen.page.goto(f"{seen.url}#/")
    seen.page.wait_for_selector("text=market")
    client_id = market.clients[0].client_id
    seen.page.goto(f"{seen.url}#/t/{market.task_id}/clients/{client_id}")
    seen.page.wait_for_selector("text=round/1")
    assert seen.said == []


def test_the_table_behind_a_chart_has_the_numbers_of_the_api(visit: Any, market: Market) -> None:
    seen = visit()
    seen.show(market.task_id, "market")
    card = seen.page.locator("section.card", has_text="Where each reward went")
    with seen.page.expect_download() as download:
        card.get_by_role("button", name="CSV").click()
    lines = Path(download.value.path()).read_text().splitlines()
    rounds = [one for one in market.get("/rounds") if one["state"] == "settled"]
    assert lines[0].startswith("round,reward,paid")
    assert [[float(value) for value in line.split(",")[:3]] for line in lines[1:]] == [
        [one["round_number"], one["reward_micro"] / 1e6, one["paid_micro"] / 1e6] for one in rounds
    ]
    card.locator("summary").click()
    card.locator("tbody tr").last.wait_for()
    assert card.locator("tbody tr").count() == len(rounds)


def test_the_page_follows_the_task_without_a_reload(visit: Any, market: Market) -> None:
    seen = visit()
    seen.show(market.task_id, "market")
    seen.page.wait_for_selector(".pill.live")
    seen.page.evaluate("globalThis.same = true")
    settled = market.get("")["settled_rounds"]
    market.play()
    seen.page.wait_for_selector(f"text={settled + 1} settled")
    # Answers to the open round have no event; the page shows them too.
    first = market.selected[0]
    news = first.poll()
    assert news is not None
    first.declare(news["round"]).raise_for_status()
    seen.page.wait_for_selector(".chips li.declared")
    assert seen.page.evaluate("globalThis.same") is True
    for client in market.selected:
        client.play(news["round"])


def test_the_page_reconnects_after_a_killed_coordinator(visit: Any, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    coordinator = Coordinator(tmp_path, arguments=("--port", str(port)))
    with coordinator.start():
        market = Market(coordinator)
        seen = visit(market.token(), url=coordinator.url)
        seen.show(market.task_id, "market")
        seen.page.wait_for_selector(".pill.live")
        coordinator.kill()
        seen.page.wait_for_selector(".pill.reconnecting")
        coordinator.start()
        seen.page.wait_for_selector(".pill.live")
        market.play()
        seen.page.wait_for_selector("text=1 settled")


def test_a_token_leaves_the_address_and_a_wrong_one_is_refused(visit: Any, market: Market) -> None:
    seen = visit("x" * 43)
    seen.page.wait_for_selector("text=This token is not valid here")
    assert seen.page.evaluate("sessionStorage.length") == 0
    field = seen.page.get_by_label("Token")
    field.fill(market.token())
    field.press("Enter")
    seen.page.wait_for_selector("h1:text-is('Tasks')")
    right = visit()
    right.page.wait_for_selector("h1:text-is('Tasks')")
    assert "token" not in right.page.url and right.context.cookies() == []
    assert market.token() not in right.page.evaluate("document.documentElement.outerHTML")


def test_a_client_s_token_opens_nothing(visit: Any, market: Market) -> None:
    seen = visit(market.clients[0].token)
    seen.page.wait_for_selector("text=not the token of a viewer or an admin")


def test_an_empty_task_says_so(visit: Any, market: Market) -> None:
    task_id, _ = market.coordinator.create_task("empty")
    seen = visit()
    for name in PAGES:
        seen.show(task_id, name)
        assert seen.page.query_selector("svg") is None
    seen.show(task_id, "market")
    assert "Nothing to show yet." in seen.text() and "No round is open." in seen.text()
    assert seen.said == []


def test_a_hostile_name_is_shown_as_text(visit: Any, market: Market) -> None:
    """No name that the API accepts has markup. The page must not depend on that."""
    seen = visit(None)

    def hostile(route: Any) -> None:
        answer = route.fetch()
        text = re.sub(r'"name":"market"', lambda _: f'"name":{json.dumps(HOSTILE)}', answer.text())
        text = re.sub(r'"detail":\s?"[^"]*"', lambda _: f'"detail":{json.dumps(HOSTILE)}', text)
        route.fulfill(response=answer, body=text)

    seen.page.route("**/v1/tasks", hostile)
    seen.page.route(f"**/v1/tasks/{market.task_id}", hostile)
    seen.page.goto(f"{seen.url}#token={market.token()}")
    seen.page.reload()
    seen.page.wait_for_selector(f"text={HOSTILE[:20]}")
    seen.show(market.task_id, "events")
    assert HOSTILE in seen.text()
    assert seen.page.evaluate("globalThis.hacked") is None and seen.page.query_selector("main img, main b") is None


def test_the_keyboard_reaches_pages_tables_and_dialogs(visit: Any, market: Market) -> None:
    seen = visit("admin")
    seen.show(market.task_id, "market")
    seen.page.keyboard.press("Tab")
    for _ in range(30):
        if seen.page.evaluate("document.activeElement.textContent") == "privacy":
            break
        seen.page.keyboard.press("Tab")
    seen.page.keyboard.press("Enter")
    seen.page.wait_for_selector('nav a[aria-current="page"]:text-is("privacy")')
    seen.page.locator("summary").first.focus()
    seen.page.keyboard.press("Enter")
    seen.page.wait_for_selector("details[open] table")
    seen.page.goto(f"{seen.url}#/")
    stop = seen.page.get_by_role("button", name="Stop market")
    stop.focus()
    seen.page.keyboard.press("Enter")
    seen.page.wait_for_selector("dialog[open]")
    seen.page.keyboard.press("Escape")
    seen.page.wait_for_selector("dialog", state="detached")
    assert market.get("")["state"] == "training"


def test_an_admin_pauses_and_creates_with_a_confirmation_and_a_viewer_cannot(visit: Any, market: Market) -> None:
    seen = visit("admin")
    seen.page.get_by_role("button", name="Pause market").click()
    seen.page.locator("dialog").get_by_role("button", name="Pause").click()
    seen.page.get_by_role("button", name="Resume market").click()
    assert market.get("/progress")["paused"] is True
    seen.page.locator("dialog").get_by_role("button", name="Resume").click()
    seen.page.get_by_role("button", name="Pause market").wait_for()
    seen.page.get_by_label("Name").fill("made-here")
    seen.page.get_by_label("Overrides").fill('{"game": {"horizon": -5}}')
    seen.page.get_by_role("button", name="Create task").click()
    seen.page.get_by_text("/game/horizon").wait_for()
    seen.page.get_by_label("Overrides").fill('{"game": {"horizon": 5}}')
    seen.page.get_by_role("button", name="Create task").click()
    seen.page.wait_for_selector("text=shown only once")
    viewer = visit()
    viewer.page.wait_for_selector("text=made-here")
    assert viewer.page.query_selector("text=New task") is None
    assert viewer.page.query_selector("main button") is None


@pytest.mark.parametrize(("theme", "width"), [("light", 360), ("dark", 1920)])
def test_pages_are_accessible_and_fit_the_screen(visit: Any, market: Market, theme: str, width: int) -> None:
    seen = visit("admin", color_scheme=theme, viewport={"width": width, "height": 900})
    seen.page.wait_for_selector("text=market")
    for name in ("", *PAGES):
        if name:
            seen.show(market.task_id, name)
            seen.page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        seen.page.evaluate(AXE.read_text())
        found = seen.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        serious = [
            (one["id"], [node["html"][:200] for node in one["nodes"]])
            for one in found["violations"]
            if one["impact"] in ("serious", "critical")
        ]
        assert serious == [], f"{name}: {serious}"
        assert seen.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{name} is too wide"
    assert seen.page.evaluate("document.documentElement.dataset.theme") == theme
