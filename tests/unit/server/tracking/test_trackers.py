"""Trackers: what the real libraries read of a task, after restarts and failures too."""

import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

from qidpfl_server.domain import Task
from qidpfl_server.errors import CoordinatorError
from qidpfl_server.service.progress.accounts import account_page
from qidpfl_server.settings import Settings
from qidpfl_server.tracking import follower as follower_module
from qidpfl_server.tracking import series as series_module
from qidpfl_server.tracking.follower import Follower
from qidpfl_server.tracking.mlflow import Mlflow
from qidpfl_server.tracking.open_trackers import mlflow, tensorboard, tracked, write_task
from qidpfl_server.tracking.series import Point
from qidpfl_server.tracking.tensorboard import TensorBoard
from qidpfl_server.tracking.tracker import TaskWriter, Tracker
from qidpfl_shared.core.money import from_micro
from support.use_cases import ServedTask, UseCases

# MLflow's store uses what its version of SQLAlchemy calls deprecated.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

Values = dict[tuple[str, int], float]
ROUNDS = 3


def read_tensorboard(folder: Path) -> tuple[Values, Counter[tuple[str, int]]]:
    """All scalars of a folder, as TensorBoard itself reads its files."""
    values: Values = {}
    seen: Counter[tuple[str, int]] = Counter()
    for path in sorted(folder.rglob("*tfevents*")):
        for event in LegacyEventFileLoader(str(path)).Load():
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    values[value.tag, event.step] = value.simple_value
                    seen[value.tag, event.step] += 1
    return values, seen


def read_mlflow(uri: str) -> tuple[Values, Counter[tuple[str, int]]]:
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("qidpfl")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    metrics = [one for name in run.data.metrics for one in client.get_metric_history(run.info.run_id, name)]
    return {(one.key, one.step): one.value for one in metrics}, Counter((one.key, one.step) for one in metrics)


@pytest.fixture(params=["tensorboard", "mlflow"])
def place(
    request: pytest.FixtureRequest, tmp_path: Path
) -> tuple[Tracker, Callable[[], tuple[Values, Counter[tuple[str, int]]]]]:
    if request.param == "tensorboard":
        return tensorboard(tmp_path / "board"), lambda: read_tensorboard(tmp_path / "board")
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    return mlflow(uri), lambda: read_mlflow(uri)


Place = tuple[Tracker, Callable[[], tuple[Values, Counter[tuple[str, int]]]]]


def play(cases: UseCases, task: ServedTask, clients: Sequence[object], number: int) -> None:
    cases.clock.advance(1.0)
    task.play(clients, number)  # type: ignore[arg-type]


def test_a_tracker_shows_money_budgets_epsilon_and_accuracy(cases: UseCases, place: Place) -> None:
    tracker, read = place
    task, clients = cases.training(game={"horizon": ROUNDS})
    for number in range(1, ROUNDS + 1):
        play(cases, task, clients, number)
    written = write_task(cases.store, task.task_id, tracker)
    values, seen = read()
    assert written == len(values) and set(seen.values()) == {1}
    accounts = cases.store.read(lambda tx: account_page(tx, task.task_id, -1, 100)).accounts
    for account in accounts:
        name = f"client-{account.ordinal:03d}"
        steps = range(1, ROUNDS + 1)
        assert sum(values[f"payment/{name}", step] for step in steps) == pytest.approx(from_micro(account.earned_micro))
        assert values[f"epsilon/{name}", ROUNDS] == pytest.approx(account.epsilon)
        assert all(values[f"budget/{name}", step] > 0 for step in steps)
    assert values["task/epsilon", ROUNDS] == pytest.approx(max(account.epsilon or 0 for account in accounts))
    rounds = cases.store.read(lambda tx: tx.rounds.of_task(task.task_id))
    for round_ in rounds:
        step = round_.round_number
        assert values["round/reward", step] == pytest.approx(from_micro(round_.reward_micro))
        assert values["round/declared_total", step] == pytest.approx(round_.declared_total)
        paid = sum(values[f"payment/client-{account.ordinal:03d}", step] for account in accounts)
        assert values["round/paid", step] == pytest.approx(paid)
    assert write_task(cases.store, task.task_id, tracker) == 0
    assert read()[1] == seen


def test_a_restart_in_the_middle_writes_nothing_twice(cases: UseCases, place: Place) -> None:
    tracker, read = place
    task, clients = cases.training(game={"horizon": ROUNDS})
    play(cases, task, clients, 1)
    first = TaskWriter(tracker, task.task_id)
    first.write_new(cases.store)
    play(cases, task, clients, 2)
    # Another process begins while the first is not even closed, as after kill -9.
    assert TaskWriter(tracker, task.task_id).write_new(cases.store)[1] is False
    play(cases, task, clients, 3)
    write_task(cases.store, task.task_id, tracker)
    values, seen = read()
    assert set(seen.values()) == {1}
    assert {step for series, step in values if series == "round/paid"} == {1, 2, 3}


def test_a_record_that_a_crash_has_cut_off_is_written_again(cases: UseCases, tmp_path: Path) -> None:
    task, clients = cases.training(game={"horizon": 2})
    play(cases, task, clients, 1)
    board = TensorBoard(tmp_path)
    count = write_task(cases.store, task.task_id, board)
    (file,) = tmp_path.rglob("*tfevents*")
    file.write_bytes(file.read_bytes()[:-5])
    assert write_task(cases.store, task.task_id, board) == 1
    values, seen = read_tensorboard(tmp_path)
    assert len(values) == count and set(seen.values()) == {1}


def test_an_mlflow_run_has_the_spec_and_ends_with_the_task(cases: UseCases, tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    task, clients = cases.training(game={"horizon": 1})
    play(cases, task, clients, 1)
    write_task(cases.store, task.task_id, Mlflow(uri))
    client = MlflowClient(uri)
    (run,) = client.search_runs(["1"])
    assert (run.info.status, run.data.tags["qidpfl.reason"]) == ("FINISHED", "horizon_reached")
    assert run.data.params["game.horizon"] == "1" and run.data.tags["qidpfl.task_id"] == task.task_id


def test_a_large_task_has_no_series_per_client(
    cases: UseCases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(series_module, "MAX_CLIENT_SERIES", 2)
    task, clients = cases.training(game={"horizon": 1})
    play(cases, task, clients, 1)
    write_task(cases.store, task.task_id, TensorBoard(tmp_path))
    values, _ = read_tensorboard(tmp_path)
    assert ("task/epsilon", 1) in values and not any("client-" in series for series, _ in values)


def test_without_noise_there_is_no_epsilon(cases: UseCases, tmp_path: Path) -> None:
    task, clients = cases.training(game={"horizon": 1, "policy": "none"}, privacy={"noise": False})
    for client in clients:
        client.join()
        client.upload()
    task.settle()
    write_task(cases.store, task.task_id, TensorBoard(tmp_path))
    values, _ = read_tensorboard(tmp_path)
    assert ("round/paid", 1) in values and not any("epsilon" in series for series, _ in values)


class Unreliable:
    """A tracker that does not answer at first, and loses its connection after half of the points."""

    name = "unreliable"

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.asked = threading.Event()
        self.points: list[Point] = []
        self.broken = True
        self.ended = threading.Event()

    def open(self, task: Task) -> "Unreliable":
        self.asked.set()
        assert self.answers.wait(60)
        return self

    def known(self) -> set[tuple[str, int]]:
        return {point.key for point in self.points}

    def write(self, points: Sequence[Point]) -> None:
        if self.broken:
            self.broken = False
            self.points += points[: len(points) // 2]
            raise ConnectionError("gone")
        self.points += points

    def end(self, task: Task) -> None:
        self.ended.set()

    def close(self) -> None: ...


def test_a_tracker_that_hangs_and_breaks_delays_no_round_and_gets_all(
    cases: UseCases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower_module, "_INTERVAL_S", 0.01)
    tracker = Unreliable()
    follower = Follower(cases.store, tracker)
    follower.start()
    task, clients = cases.training(game={"horizon": ROUNDS})
    play(cases, task, clients, 1)
    assert tracker.asked.wait(30)
    # The tracker has not answered yet, and the other rounds are settled all the same.
    for number in range(2, ROUNDS + 1):
        play(cases, task, clients, number)
    assert len(cases.store.read(lambda tx: tx.rounds.of_task(task.task_id))) == ROUNDS and not tracker.points
    tracker.answers.set()
    assert tracker.ended.wait(30)
    follower.stop()
    keys = [point.key for point in tracker.points]
    assert len(keys) == len(set(keys)) and {step for _, step in keys} == {1, 2, 3}


def test_a_hanging_tracker_does_not_hold_up_the_stop(cases: UseCases, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower_module, "_LAST_S", 0.1)
    task, clients = cases.training(game={"horizon": 1})
    play(cases, task, clients, 1)
    tracker = Unreliable()
    follower = Follower(cases.store, tracker)
    follower.start()
    follower.stop()
    assert not tracker.points
    tracker.answers.set()


def test_the_settings_name_the_trackers(cases: UseCases, tmp_path: Path) -> None:
    task, clients = cases.training(game={"horizon": 1})
    with tracked(Settings(tensorboard=tmp_path / "board"), cases.store):
        play(cases, task, clients, 1)
    assert ("round/paid", 1) in read_tensorboard(tmp_path / "board")[0]
    assert (tmp_path / "board").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(("name", "library"), [("tensorboard", "tensorboardX"), ("mlflow", "mlflow")])
def test_a_missing_library_is_named_with_its_extra(name: str, library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [one for one in sys.modules if one.split(".")[0] == library]:
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, f"qidpfl_server.tracking.{name}")
    with pytest.raises(CoordinatorError, match=rf"pip install 'qidpfl-server\[{name}\]'"):
        {"tensorboard": lambda: tensorboard(Path("x")), "mlflow": lambda: mlflow("sqlite:///x")}[name]()


@pytest.mark.parametrize("uri", ["mlruns", "http://user:secret@127.0.0.1:1"])
def test_an_unusable_address_of_mlflow_is_one_line_without_its_password(
    uri: str, cases: UseCases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    task, _ = cases.training(game={"horizon": 1})
    play(cases, task, _, 1)
    with pytest.raises(CoordinatorError) as refused:
        write_task(cases.store, task.task_id, mlflow(uri))
    assert "\n" not in str(refused.value) and "secret" not in str(refused.value)
