"""The live page in a real browser: it loads, updates, survives restarts, and fits a phone."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
import pytest

import handshake as hs
from waiting import wait_until

pytest.importorskip("starlette")
pytest.importorskip("websockets")

from browser import Browser, open_browser
from handshake.page.live import Page

ROWS = pa.schema([("t", pa.timestamp("us")), ("x", pa.int64()), ("name", pa.string())])
EVIL = "<img src=x onerror='document.title=1'><script>document.title=2</script>"


@contextmanager
def busy_join(name: str, page: Page) -> Iterator[hs.Join]:
    """Yield a join on the page that rows are pushed into all the time."""
    over = threading.Event()
    with hs.Join(left=ROWS, right=ROWS, on="l.x <= r.x", window="1 second", time="t", ordered=True) as join:
        page.add(join, name)

        def push() -> None:
            for k in itertools.count():
                if over.wait(0.05):
                    return
                rows = {
                    "t": [100_000 * k + n for n in range(20)],
                    "x": [n % 5 for n in range(20)],
                    "name": [EVIL] * 20,
                }
                join.push_left(rows)
                join.push_right(rows)

        thread = threading.Thread(target=push)
        thread.start()
        try:
            yield join
        finally:
            over.set()
            thread.join()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


def rows_so_far(browser: Browser) -> str:
    return browser.text(".stream.left span")


def test_it_loads_updates_survives_a_restart_and_shows_data_as_text(browser: Browser) -> None:
    with Page("127.0.0.1:0") as page:
        browser.resize(1280, 900)
        browser.open(page.url)
        wait_until(lambda: "Nothing runs yet" in browser.text("#empty"))
        with busy_join(f"first {EVIL}", page) as join:
            wait_until(lambda: browser.text("#name") == f"first {EVIL}")
            wait_until(lambda: "rows/s" in browser.text(".stream.left .big"))
            before = rows_so_far(browser)
            wait_until(lambda: rows_so_far(browser) != before)
            wait_until(lambda: browser.ask("document.querySelectorAll('#charts path.series').length") >= 5)
            wait_until(lambda: EVIL in browser.text("#last"))
            assert browser.text("#plan-text").strip() == join.explain().strip()
            assert browser.ask("document.querySelectorAll('.plan-node').length") == 6
            assert browser.ask("document.querySelectorAll('#last img, #last script, h2 img').length") == 0
            browser.ask("document.getElementById('why-ask').click()")
            wait_until(lambda: browser.text("#why-answer").startswith("the rows "))
        wait_until(lambda: browser.text("#facts").startswith("ended"))
        with busy_join(f"first {EVIL}", page), busy_join("second", page):
            wait_until(lambda: browser.text("#facts").startswith("running"))
            before = rows_so_far(browser)
            wait_until(lambda: rows_so_far(browser) != before)
            wait_until(lambda: browser.ask("document.querySelectorAll('nav button').length") == 2)
            browser.ask("document.querySelectorAll('nav button')[1].click()")
            wait_until(
                lambda: browser.text("#name") == "second" and "rows/s" in browser.text(".stream.left .big")
            )
        assert browser.ask("document.title") == "second · Handshake live"
    wait_until(lambda: browser.text("#link") == "reconnecting")
    complaints = [each for each in browser.complaints if "ERR_CONNECTION_REFUSED" not in each]
    assert [each for each in complaints if "ERR_INCOMPLETE_CHUNKED_ENCODING" not in each] == []
    assert {url.split("/")[2] for url in browser.requested if url.startswith("http")} == {
        page.url.split("/")[2]
    }


def test_it_fits_a_phone_and_a_dark_room(browser: Browser) -> None:
    with Page("127.0.0.1:0") as page, busy_join("on a phone", page):
        browser.resize(375, 812, dark=True)
        browser.open(page.url)
        wait_until(lambda: browser.ask("document.querySelectorAll('#charts path.series').length") >= 5)
        assert browser.ask("document.documentElement.scrollWidth") == 375
        wide = """[...document.querySelectorAll("body *")]
            .filter((e) => !e.closest(".scroll, pre, svg, .pipe"))
            .filter((e) => e.getBoundingClientRect().right > 376)
            .map((e) => e.outerHTML.slice(0, 80))"""
        assert browser.ask(wide) == []
        assert browser.ask("document.querySelectorAll('#plan .plan-node').length") > 0
        assert browser.ask("(({ scrollWidth, clientWidth }) => scrollWidth <= clientWidth)(plan)")
        ground, ink = browser.ask(
            "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
        )
        assert (ground, ink) == ("rgb(14, 21, 20)", "rgb(226, 235, 233)")
        names = "[...document.querySelectorAll('[role=img]')].every((e) => e.getAttribute('aria-label'))"
        assert browser.ask(names)


def test_it_asks_for_a_row_of_each_stream(browser: Browser) -> None:
    event = pa.schema([("t", pa.timestamp("us")), ("x", pa.int64())])
    streams = dict.fromkeys(("orders", "payments", "parcels"), event)
    with (
        Page("127.0.0.1:0") as page,
        hs.MultiJoin(streams, "orders.x < payments.x", window="5 s", time="t") as join,
    ):
        browser.resize(375, 812)
        page.add(join, "several")
        for number, name in enumerate(streams):
            join.push(name, {"t": [number], "x": [number]})
        browser.open(page.url)
        wait_until(lambda: "payments" in browser.text("#last"))
        wait_until(lambda: browser.ask("document.querySelectorAll('#why-rows textarea').length") == 3)
        leaves = "[...document.querySelectorAll('.plan-node[class*=leaf] rect')]"
        colours = browser.ask(f"new Set({leaves}.map((e) => getComputedStyle(e).stroke)).size")
        assert colours == 3
        wait_until(lambda: '"x":1' in browser.ask("document.querySelectorAll('#why-rows textarea')[1].value"))
        browser.ask("document.getElementById('why-ask').click()")
        wait_until(lambda: "row of parcels in the join: it is held" in browser.text("#why-answer"))
        assert browser.text("#why-answer").startswith("the rows join")
        assert browser.ask("document.documentElement.scrollWidth") == 375


def test_axes_end_above_every_value(browser: Browser) -> None:
    with Page("127.0.0.1:0") as page:
        browser.open(page.url)
        draw = """Promise.all(["charts", "numbers"].map((name) => import(`./${name}.js`)))
            .then(([{ LineChart }, { count }]) => [...Array(400).keys()].map((k) => {
                const chart = new LineChart("x", "", count), value = 10 ** (k / 80 - 3);
                chart.draw([{ name: "a", color: "left", points: [[0, value], [1, value]] }], 0, 1);
                return chart.body.innerHTML.includes("NaN");
            }).filter(Boolean).length)"""
        assert browser.ask(draw) == 0


def test_labels_of_the_histogram_are_apart_on_a_phone(browser: Browser) -> None:
    with Page("127.0.0.1:0") as page:
        browser.resize(390, 844)
        browser.open(page.url)
        gaps = """import("./charts.js").then(({ histogram }) => {
            const place = document.body.appendChild(document.createElement("div"));
            place.className = "chart";
            const buckets = [...Array(60).keys()].map((k) => [10 ** (k / 10 - 5), k + 1]);
            histogram(place, { results: 9, p50: 1e-4, p99: 1e-2, longest: 1, buckets });
            const boxes = [...place.querySelectorAll("text")].map((e) => e.getBoundingClientRect());
            const axis = boxes.filter((box) => box.top > boxes.at(-1).bottom);
            return axis.slice(1).map((box, k) => box.left - axis[k].right);
        })"""
        found = browser.ask(gaps)
        assert len(found) >= 2
        assert min(found) > 4


def test_a_link_chooses_the_query_also_on_an_open_page_with_a_token(browser: Browser) -> None:
    with Page("127.0.0.1:0", "aGVs+bG8=") as page, busy_join("first", page), busy_join("a & b", page):
        browser.resize(1280, 900)
        before = len(browser.complaints)
        browser.open(f"{page.url}#query=first")
        wait_until(lambda: browser.text("#name") == "first")
        wait_until(lambda: browser.ask("document.querySelectorAll('nav button').length") == 2)
        browser.ask("location.hash = 'query=a%20%26%20b'")
        wait_until(lambda: browser.text("#name") == "a & b")
        assert browser.complaints[before:] == []
