"""A log that writes each event at most once a second."""

import structlog.testing

from qidpfl_server.logs import LimitedLog


def test_an_event_is_logged_once_a_second_with_the_number_of_lines_left_out() -> None:
    now = 0.0
    log = LimitedLog(clock=lambda: now)
    with structlog.testing.capture_logs() as lines:
        for _ in range(5):
            log.warning("one", n=1)
        log.warning("other")
        now = 1.0
        log.warning("one", n=2)
        now = 2.0
        log.warning("one", n=3)
    said = [(line["event"], line.get("n"), line.get("left_out")) for line in lines]
    assert said == [("one", 1, None), ("other", None, None), ("one", 2, 4), ("one", 3, None)]
