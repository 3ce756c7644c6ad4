"""The live page: its server, what it refuses, its history, and pages of several processes."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pyarrow as pa
import pytest

import handshake as hs
from handshake.errors import InputError
from handshake.metrics.snapshot import Snapshot, StreamPart
from handshake.page.history import SECONDS, History
from waiting import wait_until

pytest.importorskip("starlette")

from handshake.page.board import Board, ThingSource
from handshake.page.live import Page
from handshake.page.remote import RemoteSource

ROWS = pa.schema([("t", pa.timestamp("us")), ("x", pa.int64()), ("name", pa.string())])
EVIL = "<img src=x onerror=alert(1)>"


@pytest.fixture(autouse=True)
def _private_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


@pytest.fixture
def join() -> Iterator[hs.Join]:
    with hs.Join(left=ROWS, right=ROWS, on="l.x < r.x", window="1 second", time="t") as running:
        running.push_left({"t": [0, 1], "x": [1, 2], "name": [EVIL, None]})
        running.push_right({"t": [3], "x": [2], "name": ["b"]})
        yield running


def get(page: Page, path: str, **headers: str) -> tuple[int, dict[str, str], str]:
    return ask(page.url, path, **headers)


def ask(url: str, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=10)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, {k.lower(): v for k, v in answer.getheaders()}, text


def state(page: Page) -> dict[str, Any]:
    return dict(json.loads(get(page, "/state")[2])["queries"])


def test_the_figures_are_those_of_the_join_and_follow_it(join: hs.Join) -> None:
    with hs.live(join, name="pairs", address="127.0.0.1:0") as page:
        wait_until(lambda: "pairs" in state(page))
        join.push_right({"t": [4, 5], "x": [9, None], "name": ["c", "d"]})
        found = wait_until(lambda: (s := state(page)["pairs"])["results"] == {"join": 3} and s)
        assert [(s["name"], s["rows"]) for s in found["streams"]] == [("left", 2), ("right", 3)]
        assert found["figures"]["state_bytes"] == join.metrics().state_bytes
        last = wait_until(lambda: state(page)["pairs"]["last"])
        assert last["columns"] == join.output_schema.names
        assert {row[2] for row in last["rows"]} <= {EVIL, None}
        about = json.loads(get(page, "/query?name=pairs")[2])["about"]
        assert about["text"] == join.explain()
        assert about["windows"] == {"left": "1 second", "right": "1 second"}
        assert about["tree"]["children"][0]["label"].startswith("inner join on ")
        join.close()
        wait_until(lambda: state(page)["pairs"]["state"] == "ended")
    with pytest.raises(OSError, match="refused"):
        get(page, "/state")


def test_events_come_as_often_as_asked_for(join: hs.Join) -> None:
    with hs.live(join, name="pairs", address="127.0.0.1:0") as page:
        with urllib.request.urlopen(f"{page.url}events?rate=50", timeout=10) as answer:
            assert answer.headers["Content-Type"].startswith("text/event-stream")
            began, frames = time.monotonic(), []
            while len(frames) < 20:
                line = answer.readline().decode()
                if line.startswith("data: "):
                    frames.append(json.loads(line.removeprefix("data: ")))
        assert time.monotonic() - began < 10  # once a second, they would take 20
        assert frames[-1]["t"] > frames[0]["t"]
        shown = [frame["queries"]["pairs"] for frame in frames if "pairs" in frame["queries"]]
        assert {"streams", "figures", "latency", "last", "rows", "results"} <= set(shown[0])
        assert {frozenset(each) for each in shown} >= {frozenset(("rows", "results"))}  # the rest is not new
        assert shown[-1]["results"] == {"join": 1}
        for rate in ("0", "51", "x", "nan"):
            assert get(page, f"/events?rate={rate}")[0] == 400


def test_metrics_and_why_are_answered(join: hs.Join) -> None:
    with hs.live(join, name="pairs", address="127.0.0.1:0") as page:
        wait_until(lambda: "pairs" in state(page))
        status, headers, text = get(page, "/metrics")
        assert (status, headers["content-type"].split(";")[0]) == (200, "application/openmetrics-text")
        assert 'handshake_results_total{engine="local",query="pairs",result="join"} 1.0' in text
        left, right = ('{"t": "1970-01-01 00:00:00.000001", "x": 5, "name": "a"}',) * 2
        answer = json.loads(get(page, f"/why?name=pairs&left={quote(left)}&right={quote(right)}")[2])
        assert answer["text"].startswith("the rows do not join")
        status, _, text = get(page, "/why?name=pairs&left=[1]&right=2")
        assert (status, json.loads(text)) == (
            400,
            {"error": 'the left row is an object in JSON, such as {"x": 1}'},
        )
        status, _, text = get(page, "/query?name=none")
        assert (status, json.loads(text)) == (400, {"error": "no query 'none' on this page (pairs)"})


def test_nothing_can_be_changed_and_other_hosts_are_refused(join: hs.Join) -> None:
    with hs.live(join, address="127.0.0.1:0") as page:
        for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
            assert ask(page.url, "/state", method)[0] == 405
        assert get(page, "/state", Host="evil.example:80")[0] == 421  # a name that was bound to this machine
        assert get(page, "/state", Host="localhost:1")[0] == 200
        assert get(page, "/../../etc/passwd")[0] == 404
        for path in ("/", "/page.js", "/page.css", "/state", "/nothing"):
            headers = get(page, path)[1]
            assert (
                "default-src 'none'; script-src 'self'; style-src 'self'"
                in headers["content-security-policy"]
            )
            assert headers["x-content-type-options"] == "nosniff"


def test_other_addresses_need_a_token(join: hs.Join) -> None:
    with pytest.raises(InputError, match=r"'0\.0\.0\.0' can be read by other machines, so it needs a token"):
        Page("0.0.0.0:0")
    with Page("0.0.0.0:0", "se cret").add(join, "pairs") as page:
        url = page.url.replace("0.0.0.0", "127.0.0.1")
        assert url.endswith("?token=se%20cret")
        assert ask(url, "/state")[0] == 401
        assert ask(url, "/state?token=wrong")[0] == 401
        status, headers, _ = ask(url, "/?token=se%20cret")
        assert (status, "HttpOnly; SameSite=Strict" in headers["set-cookie"]) == (200, True)
        assert ask(url, "/state", Cookie="handshake_live=wrong")[0] == 401
        assert ask(url, "/state", Authorization="Bearer se cret", Host="other.example")[0] == 200


def test_the_address_must_be_free(join: hs.Join) -> None:
    taken = r"cannot be served at '127\.0\.0\.1:\d+': Address already in use"
    with Page("127.0.0.1:0") as page, pytest.raises(InputError, match=taken):
        Page(urlsplit(page.url).netloc)
    with Page() as first, Page() as second:
        assert first.url != second.url


def test_a_query_of_the_same_name_continues_the_history(join: hs.Join) -> None:
    board = Board()
    older, newer = ThingLike("q", 5), ThingLike("q", 1)
    board.take(older, older.snapshots())
    board.take(newer, newer.snapshots())
    board.take(older, [older.snapshots()[0].with_state("ended")])
    assert board.frame()["queries"]["q"]["results"] == {"r": 1}
    assert board.frame()["queries"]["q"]["state"] == "running"


def test_a_query_that_has_failed_already_is_noted_without_the_stack() -> None:
    class Failed:
        name, id, isActive, lastProgress, recentProgress = "q", "id", False, None, ()

        def exception(self) -> Exception:
            trace = "\n\tat a.B.c(B.scala:1)\n=== Streaming Query ===\nIdentifier: q"
            return Exception("[STREAM_FAILED] no <room>" + trace)

    board, source = Board(), ThingSource(Failed(), None)
    for _ in range(3):
        board.take(source, source.snapshots())
    frame = board.frame()
    assert [(each["query"], each["error"]) for each in frame["errors"]] == [
        ("q", "[STREAM_FAILED] no <room>")
    ]
    assert (frame["queries"]["q"]["state"], frame["queries"]["q"]["error"]) == (
        "failed",
        "[STREAM_FAILED] no <room>",
    )


class ThingLike:
    def __init__(self, name: str, results: int) -> None:
        self.name, self._results = name, results

    def snapshots(self) -> list[Snapshot]:
        return [Snapshot(self.name, "local", "running", results={"r": self._results})]

    def about(self, name: str) -> dict[str, Any]:
        return {}

    def why(self, left: Any, right: Any) -> str:
        return ""


def test_the_history_has_a_point_per_second_for_an_hour() -> None:
    history = History()
    for second in range(SECONDS + 100):
        snapshot = Snapshot("q", "local", "running", streams=(StreamPart("a", rows=second),))
        assert history.add(snapshot, 1000.2 + second)
        assert not history.add(snapshot, 1000.9 + second)
    columns = history.columns()
    assert len(columns["t"]) == len(columns["rows a"]) == SECONDS
    assert columns["rows a"][-1] == SECONDS + 99
    copy = History()
    copy.extend(columns)
    assert copy.columns() == columns


def test_a_source_that_fails_is_noted_and_the_others_go_on(join: hs.Join) -> None:
    class Broken(ThingLike):
        def snapshots(self) -> list[Snapshot]:
            raise RuntimeError("no figures")

    with hs.live(join, name="pairs", address="127.0.0.1:0") as page:
        page.board.add(Broken("broken", 0))
        wait_until(lambda: page.board.errors and "pairs" in state(page))
        noted = [(each["query"], each["error"]) for each in page.board.errors]
    assert noted == [("broken", "figures cannot be read: RuntimeError: no figures")]


def test_one_page_collects_those_of_others(join: hs.Join) -> None:
    with Page("127.0.0.1:0", "secret").add(join, "pairs") as theirs, Page("127.0.0.1:0") as ours:
        wait_until(lambda: "pairs" in theirs.board.cards)
        ours.board.add(RemoteSource(theirs.url, ours.board))
        found = wait_until(lambda: state(ours).get("pairs"))
        assert (found["results"], found["state"]) == ({"join": 1}, "running")
        assert json.loads(get(ours, "/query?name=pairs")[2])["about"]["text"] == join.explain()
        theirs.close()
        wait_until(lambda: state(ours)["pairs"]["state"] == "ended", what="the page is gone")
    with pytest.raises(InputError, match="'ftp://x' is not the address of a live page"):
        RemoteSource("ftp://x", Board())


# Commands


def start(*arguments: str, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "handshake.cli", *arguments], text=True, env={**os.environ, **variables},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


def announced(stream: Any) -> str:
    for line in stream:
        if line.startswith("live page at "):
            return str(line.split()[-1])
    raise AssertionError("no page was announced")


def test_commands_show_their_runs_and_one_page_shows_all(tmp_path: Path) -> None:
    for name in ("left", "right"):
        (tmp_path / f"{name}.csv").write_text("t,x\n" + "".join(f"{k},{k % 7}\n" for k in range(500)))
    join = start(
        "join", str(tmp_path / "left.csv"), str(tmp_path / "right.csv"), "--on", "l.x = r.x", "--window",
        "10 tuples", "--live-at", "127.0.0.1:0",
    )  # fmt: skip
    collected = start("live", "--at", "127.0.0.1:0")
    try:
        assert join.stderr is not None
        assert collected.stdout is not None
        url = announced(join.stderr)
        found = wait_until(
            lambda: (q := queries(url).get("join")) and q["state"] == "ended" and q["last"] and q
        )
        assert [stream["rows"] for stream in found["streams"]] == [500, 500]
        assert found["last"]["columns"] == ["t", "x", "t_right", "x_right"]
        about = json.loads(ask(url, "/query?name=join")[2])["about"]
        assert about["tree"]["label"] == "results (t, x, t_right, x_right)"
        assert about["text"].startswith("join on     l.x = r.x\n")
        row = quote('{"t": 1, "x": 1}'), quote('{"t": 2, "x": 2}')
        answer = ask(url, f"/why?name=join&left={row[0]}&right={row[1]}")[2]
        assert "no   l.x = r.x: 1 = 2" in json.loads(answer)["text"]
        everything = announced(collected.stdout)
        wait_until(lambda: queries(everything).get("join", {}).get("results") == found["results"])
    finally:
        for process in (join, collected):
            os.kill(process.pid, signal.SIGINT)
    assert join.wait(20) == 0
    assert collected.wait(20) == 0
    assert f"{sum(found['results'].values()):,}" in join.communicate()[0]
    assert collected.communicate()[1] == ""


def queries(url: str) -> dict[str, Any]:
    return dict(json.loads(ask(url, "/state")[2])["queries"])


def test_a_command_does_not_open_a_page_for_others_without_a_token(tmp_path: Path) -> None:
    process = start("live", "--at", "0.0.0.0:0", HANDSHAKE_LIVE_TOKEN="")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, "")
    assert err.startswith("handshake: a live page at '0.0.0.0' can be read by other machines")
