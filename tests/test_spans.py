"""Spans: a span's own time is what its inner ones leave, and evaluation swallows what happens in it."""

from __future__ import annotations

import threading
import time

from sargnn import spans
from sargnn.spans import AGGREGATION, EVALUATION, EXCHANGE_WAIT, LINEAR, REST, Spans, span


def test_own_time_and_evaluation() -> None:
    recorder = Spans()
    spans.install(recorder)
    try:
        with span(REST), span(AGGREGATION):
            time.sleep(0.02)
            with span(EXCHANGE_WAIT):
                time.sleep(0.03)
        with span(EVALUATION), span(LINEAR):
            time.sleep(0.01)
    finally:
        spans.install(None)
    assert recorder.own_s[AGGREGATION] >= 0.02 and recorder.own_s[EXCHANGE_WAIT] >= 0.03
    assert recorder.own_s[REST] < 0.01 and recorder.own_s[LINEAR] == 0.0 and recorder.own_s[EVALUATION] >= 0.01
    outer = next(e for e in recorder.events if e[0] == REST)
    assert abs(sum(recorder.own_s[name] for name in (REST, AGGREGATION, EXCHANGE_WAIT)) - (outer[2] - outer[1])) < 1e-6
    assert all(abs(recorder.cpu_s[name]) < 0.02 for name in (REST, AGGREGATION, EXCHANGE_WAIT))  # it slept
    assert [e["name"] for e in recorder.trace(0)["traceEvents"][1:]] == [REST, AGGREGATION, EXCHANGE_WAIT, EVALUATION, LINEAR]


def test_core_seconds_are_those_of_all_threads() -> None:
    recorder = Spans()
    spans.install(recorder)
    stop = threading.Event()
    thread = threading.Thread(target=lambda: [None for _ in iter(stop.is_set, True)])
    try:
        with span(REST):
            with span(AGGREGATION):
                thread.start()
                time.sleep(0.3)  # while the other thread works
                stop.set()
                thread.join()
            time.sleep(0.1)
    finally:
        spans.install(None)
    assert recorder.cpu_s[AGGREGATION] > 0.1 and recorder.cpu_s[REST] < 0.05


def test_nothing_is_recorded_unasked() -> None:
    recorder = Spans()
    with span(LINEAR):
        pass
    assert not recorder.events
