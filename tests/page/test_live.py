"""The live page: its server, what it refuses, its history, and pages of several processes."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pyarrow as pa
import pytest
import typer

import handshake as hs
from handshake.cli.live import live
from handshake.errors import InputError
from handshake.joins.join import Replay, prepare
from handshake.metrics.snapshot import Snapshot, StreamPart
from handshake.page.history import SECONDS, History, points_of
from waiting import wait_until

pytest.importorskip("starlette")

from handshake.page.board import MOST_ENDED, Board
from handshake.page.frames import Viewer
from handshake.page.live import Page
from handshake.page.remote import RemoteSource, look_for_pages
from handshake.page.sources import Source, ThingSource

ROWS = pa.schema([("t", pa.timestamp("us")), ("x", pa.int64()), ("name", pa.string())])
EVIL = "<img src=x onerror=alert(1)>"
LEFT = '{"t": "1970-01-01 00:00:00.000001", "x": 5, "name": "a"}'
QUERY = """CREATE INPUT STREAM Trades (Price int, Ts int) TIMESTAMP BY Ts;
           SELECT max(Price) AS High FROM Trades [SIZE 60 ADVANCE 60 TIME] INTO Highs"""


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
        answer = json.loads(get(page, f"/why?name=pairs&row={quote(LEFT)}&row={quote(LEFT)}")[2])
        assert answer["text"].startswith("the rows do not join")
        status, _, text = get(page, "/why?name=pairs&row=[1]&row=2")
        assert (status, json.loads(text)) == (
            400,
            {"error": 'the left row is an object in JSON, such as {"x": 1}'},
        )
        half = LEFT.replace('"a"', r'"\ud800"')
        status, _, text = get(page, f"/why?name=pairs&row={quote(LEFT)}&row={quote(half)}")
        assert (status, "the right row has half of a surrogate pair" in text) == (400, True)
        status, _, text = get(page, "/query?name=none")
        assert (status, json.loads(text)) == (400, {"error": "no query 'none' on this page (pairs)"})


def test_joins_of_several_streams_and_queries_say_why() -> None:
    event = pa.schema([("t", pa.timestamp("us")), ("x", pa.int64())])
    text = """CREATE INPUT STREAM S (x int, t timestamp) TIMESTAMP BY t;
        SELECT a.x FROM S [SIZE 5 s] a, S [SIZE 5 s] b WHERE a.x < b.x INTO T"""
    row = quote('{"x": 1, "t": "2026-01-01"}')
    with (
        hs.MultiJoin(dict.fromkeys("abc", event), "a.x < b.x", window="5 s", time="t") as many,
        hs.AsOfJoin(left=event, right=event, time="t", tolerance="5 s") as best,
        hs.Query(text) as query,
        hs.live(many, name="many", address="127.0.0.1:0") as page,
    ):
        query.push("S", {"x": [1], "t": [datetime(2026, 1, 1)]})
        page.add(best, "best")
        page.add(query, "query")
        wait_until(lambda: {"many", "best", "query"} <= {*state(page)})
        for name, rows, line in (
            ("many", 3, "no   a.x < b.x: 1 < 1"),
            ("best", 2, "no   left row in the join: not held: it has not come"),
            ("query", 2, "join of a and b for T: the rows do not join"),
            ("query", 2, "yes  row of b in the join: it is held"),
        ):
            answer = get(page, f"/why?name={name}{f'&row={row}' * rows}")[2]
            assert line in json.loads(answer)["text"]
            status, _, text = get(page, f"/why?name={name}&row={row}")
            assert (status, "one row of each stream is asked for" in text) == (400, True)


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
        assert ask(url, "/state", Cookie=f"handshake_live_{urlsplit(url).port}=wrong")[0] == 401
        assert ask(url, "/state", Authorization="Bearer se cret", Host="other.example")[0] == 200


@pytest.mark.parametrize("token", ["aGVsbG8=", "a+b; c", "ü€"])
def test_a_browser_keeps_the_token_as_a_cookie_of_that_page(join: hs.Join, token: str) -> None:
    with Page("127.0.0.1:0", token).add(join, "pairs") as page, Page("127.0.0.1:0", "other") as other:
        status, headers, _ = get(page, f"/?token={quote(token)}")
        cookie, _, kept = headers["set-cookie"].partition("; ")
        assert (status, kept) == (200, "HttpOnly; SameSite=Strict; Path=/")
        assert get(page, "/page.js", Cookie=cookie)[0] == 200
        assert get(other, "/page.js", Cookie=cookie)[0] == 401
        assert cookie.split("=")[0] != get(other, "/?token=other")[1]["set-cookie"].split("=")[0]
        assert "set-cookie" not in get(page, "/?token=wrong", Cookie=cookie)[1]


def test_a_page_that_is_served_keeps_its_token(join: hs.Join) -> None:
    with hs.live(join, address="127.0.0.5:0") as page:
        with pytest.raises(InputError, match="with another token or without one; close it first"):
            hs.live(join, address="127.0.0.5:0", token="secret")
        assert hs.live(address="127.0.0.5:0") is page
    with hs.live(join, address="127.0.0.5:0", token="secret") as page:
        assert hs.live(address="127.0.0.5:0", token="secret") is page
        with pytest.raises(InputError, match="with another token"):
            hs.live(join, address="127.0.0.5:0", token="other")


def test_the_address_must_be_free(join: hs.Join) -> None:
    taken = r"cannot be served at '127\.0\.0\.1:\d+': Address already in use"
    with Page("127.0.0.1:0") as page, pytest.raises(InputError, match=taken):
        Page(urlsplit(page.url).netloc)
    with Page() as first, Page() as second:
        assert first.url != second.url


def test_a_query_of_the_same_name_takes_the_place_of_the_former() -> None:
    board = Board()
    older, newer = ThingLike("q", 5), ThingLike("q", 1)
    board.add(older)
    wait_until(lambda: board.cards["q"].snapshot.results == {"r": 5} if "q" in board.cards else False)
    history = board.cards["q"].history
    board.add(newer)
    wait_until(lambda: board.cards["q"].source is newer)
    assert older.closed
    board.take(older, older.snapshots())
    assert (board.frame()["queries"]["q"]["results"], board.cards.keys()) == ({"r": 1}, {"q"})
    assert board.cards["q"].history is history
    board.close()
    assert newer.closed


def test_queries_of_one_name_from_different_sources_have_different_titles() -> None:
    board = Board()
    first, second, third = (ThingLike("join", n, f"page {n}") for n in (1, 2, 3))
    for source in (first, second):
        board.add(source)
        wait_until(lambda: len(board.cards) == len(board.sources()))
    for _ in range(3):
        for source in (first, second):
            board.take(source, source.snapshots())
        shown = {title: card.snapshot.results["r"] for title, card in board.cards.items()}
        assert shown == {"join": 1, "join · page 2": 2}
    first.state = "ended"
    wait_until(lambda: board.sources() == [second])
    board.take(second, second.snapshots())
    assert board.cards["join"].snapshot.results == {"r": 1}
    board.add(third)
    wait_until(lambda: board.cards["join"].snapshot.results == {"r": 3})
    assert board.cards["join · page 2"].snapshot.results == {"r": 2}
    board.close()


def test_sources_that_are_over_are_read_no_more_and_few_of_their_cards_stay() -> None:
    def samplers() -> list[threading.Thread]:
        return [each for each in threading.enumerate() if each.name == "handshake-live-sampler"]

    board, before = Board(), len(samplers())
    for number in range(MOST_ENDED + 3):
        source = ThingLike(f"q{number}", number)
        source.state = "ended"
        board.add(source)
        wait_until(lambda: not board.sources())
    wait_until(lambda: len(samplers()) == before)
    assert list(board.cards) == [f"q{number}" for number in range(3, MOST_ENDED + 3)]


def test_a_replay_ends_with_its_rows() -> None:
    rows = pa.table({"x": [1, 2]})
    replay = Replay(prepare(rows.schema, rows.schema, "l.x = r.x"), rows, rows)
    board = Board()
    board.add(ThingSource(replay, "replay"))
    wait_until(lambda: "replay" in board.cards)
    assert sum(batch.num_rows for batch in replay) == 2
    wait_until(lambda: not board.sources())
    assert (board.cards["replay"].snapshot.state, board.cards["replay"].snapshot.results) == (
        "ended",
        {"join": 2},
    )


def test_the_results_of_a_join_still_reach_its_owner(join: hs.Join) -> None:
    seen: list[int] = []
    join.on_results = lambda batch: seen.append(batch.num_rows)
    rows = {"t": [4], "x": [9], "name": ["c"]}
    with hs.live(join, name="one", address="127.0.0.1:0") as page:
        page.add(join, "other").add(join, "other")
        join.push_right(rows)
        wait_until(lambda: all(state(page).get(name, {}).get("last") for name in ("one", "other")))
        assert len(join.listeners) == 2
    assert (seen, join.listeners) == ([2], [])
    with hs.Query(QUERY) as query, Page("127.0.0.1:0").add(query, "q") as page:
        query.on_results = lambda batch: seen.append(batch.num_rows)
        query.push("Trades", {"Price": [1, 2], "Ts": [0, 100]})
        wait_until(lambda: state(page).get("q", {}).get("last"))
    assert (seen, query.listeners) == ([2, 1], [])


def test_a_slow_viewer_does_not_thin_the_history() -> None:
    board = Board()
    assert board.pause == 1.0
    board.look(Viewer(0.1))
    assert board.pause == 1.0
    board.look(Viewer(50))
    assert board.pause == 0.2


def test_a_query_that_has_failed_already_is_noted_without_the_stack() -> None:
    class Failed:
        name, id, isActive, lastProgress, recentProgress = "q", "id", False, None, ()

        def exception(self) -> Exception:
            trace = "\n\tat a.B.c(B.scala:1)\n=== Streaming Query ===\nIdentifier: q"
            return Exception("[STREAM_FAILED] no <room>" + trace)

    board = Board()
    board.add(ThingSource(Failed(), None))
    wait_until(lambda: not board.sources())
    frame = board.frame()
    assert [(each["query"], each["error"]) for each in frame["errors"]] == [
        ("q", "[STREAM_FAILED] no <room>")
    ]
    assert (frame["queries"]["q"]["state"], frame["queries"]["q"]["error"]) == (
        "failed",
        "[STREAM_FAILED] no <room>",
    )


class ThingLike(Source):
    over = closed = False
    state = "running"

    def __init__(self, query: str, results: int, name: str = "") -> None:
        self.name, self._query, self._results = name or query, query, results

    def snapshots(self) -> list[Snapshot]:
        self.over = self.state == "ended"
        return [Snapshot(self._query, "local", self.state, results={"r": self._results})]

    def counts(self, query: str) -> None: ...

    def about(self, query: str) -> dict[str, Any]:
        return {}

    def record(self, query: str) -> None: ...

    def why(self, query: str, left: str, right: str) -> str:
        return ""

    def close(self) -> None:
        self.closed = True


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
    copy.extend(points_of(columns))
    assert copy.columns() == columns
    copy.extend(points_of(columns))
    assert (copy.columns(), copy.count) == (columns, SECONDS)
    assert [point["rows a"] for point in history.after(SECONDS + 98)] == [SECONDS + 98, SECONDS + 99]
    assert history.after(SECONDS + 100) == []


def test_latencies_of_the_history_are_those_of_the_results_since_the_last_point() -> None:
    history = History()
    for second, buckets in enumerate(({17.0: 5}, {17.0: 5}, {17.0: 5, 0.1: 2}, {0.2: 1})):
        history.add(Snapshot("q", "local", latency=Latency(buckets)), 1000.0 + second)
    assert history.columns()["p99"] == [None, None, 0.1, 0.2]  # at first, it is not known when they came
    fresh = History()
    fresh.add(Snapshot("q", "local", "waiting"), 1000.0)
    fresh.add(Snapshot("q", "local", latency=Latency({17.0: 5})), 1001.0)
    assert fresh.columns()["p99"] == [17.0]


class Latency:
    def __init__(self, buckets: dict[float, int]) -> None:
        self.buckets = buckets.items()


def test_a_source_that_fails_is_noted_and_the_others_go_on(join: hs.Join) -> None:
    class Broken(ThingLike):
        def snapshots(self) -> list[Snapshot]:
            raise RuntimeError("no figures")

    with hs.live(join, name="pairs", address="127.0.0.1:0") as page:
        page.board.add(Broken("broken", 0))
        wait_until(lambda: page.board.errors.count and "pairs" in state(page))
        noted = [(each["query"], each["error"]) for each in page.board.errors.last()]
    assert noted == [("broken", "figures cannot be read: RuntimeError: no figures")]


def test_one_page_collects_those_of_others(join: hs.Join) -> None:
    token = "+ =ü€"
    with Page("127.0.0.1:0", token).add(join, "pairs") as theirs, Page("127.0.0.1:0") as ours:
        wait_until(lambda: theirs.board.cards["pairs"].history.count if theirs.board.cards else 0)
        earlier = theirs.board.cards["pairs"].history.columns()
        look_for_pages(ours.board, [theirs.url])
        look_for_pages(ours.board, [theirs.url])
        found = wait_until(lambda: state(ours).get("pairs"))
        assert (found["results"], found["state"]) == ({"join": 1}, "running")
        assert (found["since"], len(ours.board.sources())) == (
            theirs.board.frame()["queries"]["pairs"]["since"],
            1,
        )
        held = json.loads(get(ours, "/query?name=pairs")[2])
        assert (
            held["about"]
            == json.loads(ask(theirs.url, f"/query?name=pairs&token={quote(token)}")[2])["about"]
        )
        assert held["history"]["t"][: len(earlier["t"])] == earlier["t"]
        rows = f"row={quote(LEFT)}&row={quote(LEFT)}"
        assert json.loads(get(ours, f"/why?name=pairs&{rows}")[2])["text"].startswith("the rows do not join")
        assert "the left row is an object" in get(ours, "/why?name=pairs&row=1&row=2")[2]
        wait_until(lambda: len(ours.board.cards["pairs"].history.columns()["t"]) >= 3)
        theirs.close()
        wait_until(lambda: state(ours)["pairs"]["state"] == "ended", what="the page is gone")
        points = theirs.board.cards["pairs"].history.columns()["t"]
        shown = ours.board.cards["pairs"].history.columns()["t"]
        assert shown == points[: len(shown)]
        wait_until(lambda: not ours.board.sources())
        assert "does not answer" in get(ours, f"/why?name=pairs&{rows}")[2]
        with Page(urlsplit(theirs.url).netloc, token).add(join, "pairs"):
            look_for_pages(ours.board, [theirs.url])
            wait_until(lambda: state(ours)["pairs"]["state"] == "running", what="the page is back")


@pytest.mark.parametrize("url", ["ftp://x", "notaurl:abc", "http://x:99999", "http://"])
def test_what_is_not_the_address_of_a_page_is_refused(url: str) -> None:
    with pytest.raises(InputError, match=f"'{url}' is not the address of a live page"):
        RemoteSource(url)


# Commands


def start(*arguments: str, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "handshake.cli", *arguments], text=True, env={**os.environ, **variables},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


def announced_url(stream: Any) -> str:
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
        url = announced_url(join.stderr)
        found = wait_until(
            lambda: (q := queries(url).get("left and right")) and q["state"] == "ended" and q["last"] and q
        )
        assert [stream["rows"] for stream in found["streams"]] == [500, 500]
        assert found["last"]["columns"] == ["t", "x", "t_right", "x_right"]
        about = json.loads(ask(url, "/query?name=left%20and%20right")[2])["about"]
        assert about["tree"]["label"] == "results (t, x, t_right, x_right)"
        assert about["text"].startswith("join on     l.x = r.x\n")
        row = quote('{"t": 1, "x": 1}'), quote('{"t": 2, "x": 2}')
        answer = ask(url, f"/why?name=left%20and%20right&row={row[0]}&row={row[1]}")[2]
        assert "no   l.x = r.x: 1 = 2" in json.loads(answer)["text"]
        everything = announced_url(collected.stdout)
        wait_until(lambda: queries(everything).get("left and right", {}).get("results") == found["results"])
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


@pytest.mark.parametrize(
    ("pages", "folder", "complaint"),
    [
        (["notaurl:abc"], "", "handshake: 'notaurl:abc' is not the address of a live page"),
        ([], "/nonexistent", "handshake: live pages are announced in '/nonexistent/handshake-live-"),
    ],
)
def test_a_page_that_cannot_collect_says_so(
    pages: list[str],
    folder: str,
    complaint: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
    with pytest.raises(typer.Exit) as ended:
        live(pages, "127.0.0.1:0")
    out, err = capsys.readouterr()
    assert (ended.value.exit_code, out, err.startswith(complaint)) == (2, "", True)
