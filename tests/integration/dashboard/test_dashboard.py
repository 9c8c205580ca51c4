"""The dashboard in a real browser, against a live coordinator with its real Content-Security-Policy."""

import json
import math
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.browsers import missing_browser, opened_browser
from support.coordinators import Coordinator, ScriptedClient
from support.visits import Visit

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.live, pytest.mark.skipif(bool(missing_browser()), reason=missing_browser() or "")]

PAGES = ("market", "clients", "privacy", "selection", "events")
HOSTILE = '<img src=x onerror="globalThis.hacked=1"><b>bold</b>'
CLIENTS = 5
# A number that occurs nowhere else.
SECRET_RHO = 0.0123456789


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


class DashboardVisit(Visit):
    """A visit of the dashboard; the token is in the link."""

    def __init__(self, browser: "Browser", url: str, token: str | None, **options: Any) -> None:
        self.root = f"{url}/dashboard"
        super().__init__(browser, self.root if token is None else f"{self.root}#token={token}", **options)

    def show(self, task_id: str, name: str) -> None:
        self.page.goto(f"{self.root}#/t/{task_id}/{name}")
        self.page.wait_for_selector(f'nav a[aria-current="page"]:text-is("{name}")')
        self.page.wait_for_function("document.querySelectorAll('main .card').length > 0")


@pytest.fixture
def visit(browser: "Browser", market: Market) -> Iterator[Any]:
    opened: list[DashboardVisit] = []

    def start(token: str | None = "viewer", url: str | None = None, **options: Any) -> DashboardVisit:
        known = market.token(token) if token in ("viewer", "admin") else token
        opened.append(DashboardVisit(browser, url or market.coordinator.url, known, **options))
        return opened[-1]

    yield start
    for one in opened:
        one.context.close()


def test_every_page_shows_a_live_task_under_its_policy(visit: Any, market: Market) -> None:
    seen = visit()
    header = seen.page.request.get(seen.root).headers["content-security-policy"]
    assert "unsafe" not in header and "script-src 'self'" in header
    for name in PAGES:
        seen.show(market.task_id, name)
        for figure in seen.page.locator(".figure").all():
            figure.locator("svg, canvas").wait_for()
    seen.page.goto(f"{seen.root}#/")
    seen.page.wait_for_selector("text=market")
    client_id = market.clients[0].client_id
    seen.page.goto(f"{seen.root}#/t/{market.task_id}/clients/{client_id}")
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


@pytest.mark.parametrize(("name", "charts"), [("market", 8), ("clients", 1), ("privacy", 1), ("selection", 2)])
def test_behind_every_chart_is_a_table_and_a_csv_with_the_same_rows(
    visit: Any, market: Market, name: str, charts: int
) -> None:
    seen = visit()
    seen.show(market.task_id, name)
    cards = list(seen.charts())
    assert len(cards) == charts
    for card in cards:
        card.locator(".figure svg, .figure canvas").wait_for()
        card.locator("summary").click()
        card.locator("tbody tr").first.wait_for()
        lines = seen.saved(card)
        assert len(lines) - 1 == card.locator("tbody tr").count()
        assert len(lines[0]) == card.locator("thead th").count()


def test_the_market_shows_the_cost_of_the_server_and_regrets(visit: Any, market: Market) -> None:
    seen = visit()
    seen.show(market.task_id, "market")
    for title, column in (("Server cost", "cost"), ("Largest regret by round", "regret")):
        card = seen.page.locator("section.card", has=seen.page.get_by_role("heading", name=title, exact=True))
        card.locator("svg").wait_for()
        head, *lines = seen.saved(card)
        shown = [float(line[head.index(column)]) for line in lines]
        # The page may have read its first answer before the last round was settled.
        assert shown == [one[column] for one in market.get("/costs")][: len(shown)] and len(shown) >= 3


def test_no_answer_that_the_page_reads_has_a_budget_of_the_open_round(browser: "Browser", tmp_path: Path) -> None:
    with Coordinator(tmp_path) as coordinator:
        market = Market(coordinator)
        market.play()
        first = market.selected[0]
        news = first.poll()
        assert news is not None
        number = news["round"]["round_number"]
        first.http.put(f"/rounds/{number}/budget", json={"rho": SECRET_RHO}).raise_for_status()
        seen = DashboardVisit(browser, coordinator.url, market.token("admin"))
        answers: list[str] = []
        seen.page.on("response", lambda one: answers.append(one.text()) if is_whole_answer(one.url) else None)
        for name in PAGES:
            seen.show(market.task_id, name)
            seen.page.wait_for_load_state("load")
            seen.open_tables()
            assert str(SECRET_RHO) not in seen.page.content()
        seen.page.goto(f"{seen.root}#/t/{market.task_id}/clients/{first.client_id}")
        seen.page.wait_for_selector("text=round/1")
        seen.context.close()
        assert len(answers) > len(PAGES) and not any(str(SECRET_RHO) in text for text in answers)


def is_whole_answer(url: str) -> bool:
    return "/v1/" in url and not url.endswith("/events")


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


def test_the_page_asks_again_and_again_when_the_feed_cannot_be_streamed(visit: Any, market: Market) -> None:
    """A proxy that buffers ends the feed without a byte. The page then polls, and still shows every round."""
    seen = visit()
    asked: list[str] = []

    def without_a_byte(route: Any) -> None:
        asked.append(route.request.url)
        route.fulfill(status=200, content_type="text/event-stream", body="")

    seen.page.route("**/events", without_a_byte)
    seen.show(market.task_id, "market")
    seen.page.wait_for_selector(".pill.polling")
    seen.page.evaluate("globalThis.same = true")
    settled = market.get("")["settled_rounds"]
    market.play()
    seen.page.wait_for_selector(f"text={settled + 1} settled")
    assert seen.page.evaluate("globalThis.same") is True
    # It has given up the stream, and does not report a lost connection between two questions.
    assert len(asked) == 2 and seen.page.query_selector(".pill.reconnecting") is None


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
    seen.page.goto(f"{seen.root}#token={market.token()}")
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
    seen.page.goto(f"{seen.root}#/")
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


WIDTHS = (360, 480, 768, 1024, 1440, 1920)


@pytest.mark.parametrize("width", WIDTHS)
def test_at_every_width_pages_fit_the_screen_and_no_text_covers_another(visit: Any, market: Market, width: int) -> None:
    seen = visit("admin", viewport={"width": width, "height": 900})
    seen.page.wait_for_selector("text=market")
    for name in ("tasks", *PAGES, "one client"):
        if name in PAGES:
            seen.show(market.task_id, name)
        elif name == "one client":
            seen.page.goto(f"{seen.root}#/t/{market.task_id}/clients/{market.clients[0].client_id}")
            seen.page.wait_for_selector("text=round/1")
        for figure in seen.page.locator(".figure").all():
            figure.locator("svg, canvas").wait_for()
        assert seen.fits(), f"{name} is too wide"
        assert seen.overlaps() == [], name
        seen.open_tables()
        assert seen.fits(), f"{name} is too wide with its tables"


def test_the_market_shows_the_forecast_of_accuracy_and_loss(visit: Any, market: Market) -> None:
    """The rounds of this market have nearly the same budget. The curves are therefore given here."""
    seen = visit()
    limits = {"total_min": 0.0, "total_max": 100.0}
    loss = {"floor": 0.5, "rise": 1.5, "rate": 2.0, "rmse": 0.1} | limits
    curve = {"status": "fitted", "ceiling": 0.9, "drop": 0.8, "rate": 2.0, "rmse": 0.05, "loss": loss} | limits
    seen.page.route("**/forecast", lambda route: route.fulfill(json=curve))
    seen.show(market.task_id, "market")
    declared = [one["declared_total"] for one in market.get("/rounds") if one["state"] == "settled"]
    for title, limit, change in (("Accuracy", 0.9, -0.8), ("Loss", 0.5, 1.5)):
        card = seen.page.locator("section.card", has=seen.page.get_by_role("heading", name=title, exact=True))
        card.get_by_text("forecast and its error").wait_for()
        head, *lines = seen.saved(card)
        shown = [float(line[head.index("forecast")]) for line in lines]
        assert shown == pytest.approx([limit + change * math.exp(-2 * total) for total in declared][: len(shown)])
        assert len(shown) >= 3


@pytest.mark.parametrize(("theme", "width"), [("light", 360), ("dark", 1920)])
def test_pages_are_accessible_and_fit_the_screen(visit: Any, market: Market, theme: str, width: int) -> None:
    seen = visit("admin", color_scheme=theme, viewport={"width": width, "height": 900})
    seen.page.wait_for_selector("text=market")
    for name in ("", *PAGES):
        if name:
            seen.show(market.task_id, name)
            seen.open_tables()
        assert seen.serious_findings() == [], name
        assert seen.fits(), f"{name} is too wide"
    assert seen.page.evaluate("document.documentElement.dataset.theme") == theme
