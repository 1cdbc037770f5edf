"""Profiles: a span's own time is what its inner ones leave, and evaluation swallows what happens in it."""

from __future__ import annotations

import threading
import time

from sargnn.profile import AGGREGATION, EVALUATION, EXCHANGE_WAIT, LINEAR, REST, Profile


def test_own_time_and_evaluation() -> None:
    profile = Profile()
    with profile.span(REST), profile.span(AGGREGATION):
        time.sleep(0.02)
        with profile.span(EXCHANGE_WAIT):
            time.sleep(0.03)
    with profile.span(EVALUATION), profile.span(LINEAR):
        time.sleep(0.01)
    assert profile.own_s[AGGREGATION] >= 0.02 and profile.own_s[EXCHANGE_WAIT] >= 0.03
    assert profile.own_s[LINEAR] == 0.0 and profile.own_s[EVALUATION] >= 0.01
    outer = next(e for e in profile.events if e[0] == REST)
    assert profile.own_s[REST] <= outer[2] - outer[1] - 0.05  # what the inner spans leave of it
    assert abs(sum(profile.own_s[name] for name in (REST, AGGREGATION, EXCHANGE_WAIT)) - (outer[2] - outer[1])) < 1e-6
    assert all(abs(profile.cpu_s[name]) < 0.02 for name in (REST, AGGREGATION, EXCHANGE_WAIT))  # it slept
    assert [e["name"] for e in profile.trace(0)["traceEvents"][1:]] == [REST, AGGREGATION, EXCHANGE_WAIT, EVALUATION, LINEAR]


def test_core_seconds_are_those_of_all_threads() -> None:
    profile = Profile()
    stop = threading.Event()
    thread = threading.Thread(target=lambda: [None for _ in iter(stop.is_set, True)])
    with profile.span(REST):
        with profile.span(AGGREGATION):
            used = time.process_time()
            thread.start()
            while time.process_time() < used + 0.2:  # of the other thread, however busy the machine is
                time.sleep(0.02)
            stop.set()
            thread.join()
        time.sleep(0.1)
    assert profile.cpu_s[AGGREGATION] > 0.1 and profile.cpu_s[REST] < 0.05


def test_work_is_counted_where_a_span_is_open_outside_of_evaluations() -> None:
    profile = Profile()
    profile.work(LINEAR, 1.0)
    with profile.span(REST):
        profile.work(LINEAR, 2.0)
        with profile.span(EVALUATION):
            profile.work(LINEAR, 4.0)
    assert profile.done[LINEAR] == 2.0


def test_a_profile_that_does_not_record() -> None:
    profile = Profile(recording=False)
    with profile.span(REST), profile.span(LINEAR):
        profile.work(LINEAR, 1.0)
        assert not profile.inside(LINEAR)
    assert not profile.events and not any(profile.own_s.values()) and not any(profile.done.values())
