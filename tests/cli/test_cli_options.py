"""Options and back ends: what was typed is used, or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_type_hints

import pytest
import typer

from cli_runs import run_here
from handshake.cli.app import app
from handshake.cli.options import engines_of
from handshake.errors import UnsupportedError
from handshake.joins.access import ACCESS_METHODS
from handshake.joins.gate import OVERLOAD
from handshake.joins.plan import ALGORITHMS
from handshake.options import ENGINES, OPTIONS, GivenOptions, Options

BACKENDS = {
    "run": ("local", "spark", "circuit"),
    "join": ("local", "spark", "circuit"),
    "explain": ("local", "spark", "circuit"),
    "demo": ("local", "spark"),
}
COMMON = {
    "run": {"query", "input", "output", "backend", "bad", "strict", "cores", "metrics", "live", "live_at"},
    "join": {
        "left", "right", "on", "window", "left_window", "right_window", "time", "left_time", "right_time",
        "backend", "cores", "how", "output", "metrics", "explain", "live", "live_at",
    },
    "explain": {"query", "backend", "circuit"},
    "demo": {"seconds", "rate", "save", "backend", "live", "live_at"},
}  # fmt: skip
"""What every back end of a command uses."""
ARGUMENTS = {
    "run": ["nowhere.sql"],
    "join": ["nowhere.csv", "nowhere.csv", "--on", "l.x = r.a", "--window", "9 tuples"],
    "explain": ["nowhere.sql"],
    "demo": [],
}
VALUES = {
    "algorithm": "cell", "method": "scan", "overload": "shed", "join": "ordered", "divider": "serial",
    "simulator": "amaranth", "without": "narrow_joins", "vcd": "w.vcd", "dot_file": "g.dot",
    "svg_file": "p.svg", "master": "local[2]", "state_dir": "folder", "device": "gpu",
}  # fmt: skip
"""Where a number will not do."""
USES = {command: engines_of(command) for command in BACKENDS}
IDLE = [
    (command, name, backend)
    for command, uses in USES.items()
    for name, engines in uses.items()
    for backend in BACKENDS[command]
    if backend not in engines
]
USED = [
    (command, name, backend)
    for command, uses in USES.items()
    for name, engines in uses.items()
    for backend in engines
    if command != "demo"
]


def _parameters(command: str) -> dict[str, Any]:
    return {each.name: each for each in typer.main.get_command(app).commands[command].params}


def _option(command: str, name: str, value: str | None = None) -> list[str]:
    """An option as one types it."""
    parameter = _parameters(command)[name]
    flag = parameter.opts[0]
    return [flag] if parameter.is_flag else [flag, value or VALUES.get(name, "3")]


def _typed(command: str, option: list[str], backend: str) -> list[str]:
    explains = command == "explain" and backend == "circuit"
    return [command, *ARGUMENTS[command], *option, *(["--circuit"] if explains else ["--backend", backend])]


def _called(command: str, *backends: str) -> str:
    if command != "explain":
        return f"--backend {' or '.join(backends)}"
    return " or ".join("--circuit" if each == "circuit" else f"--backend {each}" for each in backends)


@pytest.mark.parametrize("command", USES)
def test_every_option_is_common_or_somebodys(command: str) -> None:
    assert set(_parameters(command)) == COMMON[command] | set(USES[command])
    assert not COMMON[command] & set(USES[command])


@pytest.mark.parametrize(("command", "name", "backend"), IDLE)
def test_what_a_back_end_would_ignore_is_refused(
    capfd: pytest.CaptureFixture[str], command: str, name: str, backend: str
) -> None:
    option = _option(command, name)
    told = run_here(capfd, *_typed(command, option, backend)).complaint
    assert told == f"{option[0]} is only supported by {_called(command, *USES[command][name])}"


@pytest.mark.parametrize(("command", "name", "backend"), USED)
def test_what_a_back_end_uses_is_not_refused(
    capfd: pytest.CaptureFixture[str], command: str, name: str, backend: str
) -> None:
    """The complaint is about the file, which is not there: it is looked for after options."""
    option = _option(command, name, "cpu" if name == "device" else None)  # a GPU need not be here
    assert "nowhere" in run_here(capfd, *_typed(command, option, backend)).complaint


def test_a_default_that_is_typed_counts(capfd: pytest.CaptureFixture[str]) -> None:
    for name, value in (("buffer", "8"), ("simulator", "auto"), ("join", "auto"), ("divider", "pipelined")):
        told = run_here(capfd, *_typed("run", _option("run", name, value), "local")).complaint
        assert told == f"--{name} is only supported by --backend circuit"


@pytest.mark.parametrize(("name", "value"), [("algorithm", "low_latency"), ("overload", "block")])
@pytest.mark.parametrize("backend", ["local", "spark", "circuit"])
def test_a_value_that_asks_for_nothing_may_be_spelled_out(
    capfd: pytest.CaptureFixture[str], name: str, value: str, backend: str
) -> None:
    options = [*_option("join", name, value), "--method", "auto", "--cores", "2"]
    assert "nowhere" in run_here(capfd, *_typed("join", options, backend)).complaint


def test_a_back_end_that_nobody_knows_is_told_of_first(capfd: pytest.CaptureFixture[str]) -> None:
    told = run_here(capfd, *_typed("run", ["--vcd", "w.vcd"], "circiut")).complaint
    assert told == "unknown backend 'circiut'; choose local, spark, circuit; did you mean 'circuit'?"


@pytest.mark.parametrize("backend", ["local", "spark"])
def test_a_circuit_or_a_plan_is_explained(capfd: pytest.CaptureFixture[str], backend: str) -> None:
    told = run_here(capfd, "explain", "nowhere.sql", "--circuit", "--backend", backend).complaint
    assert told == f"--circuit explains a circuit, and --backend {backend} a plan; leave one of them out"


@pytest.mark.parametrize("path", ["udp://127.0.0.1:0", "-"])
def test_what_comes_live_has_a_pace_of_its_own(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, path: str
) -> None:
    (tmp_path / "q.sql").write_text("CREATE INPUT STREAM S (a int); SELECT a FROM S INTO T")
    asked = ["run", tmp_path / "q.sql", "--input", f"S={path}", "--pace", "2"]
    assert run_here(capfd, *asked).complaint == (
        f"--pace is for files, and S comes from '{path}' at the pace of its sender; leave it out"
    )


# The options of runs, from which the command line is made.


def test_the_typed_dict_and_the_entries_agree() -> None:
    given, entries = get_type_hints(GivenOptions), get_type_hints(Options)
    assert given == entries
    assert set(given) == set(OPTIONS)


def test_choices_are_those_of_the_joins() -> None:
    found = [OPTIONS[name].choices for name in ("method", "algorithm", "overload")]
    assert found == [("auto", *ACCESS_METHODS), ALGORITHMS, OVERLOAD]


@pytest.mark.parametrize("engine", ENGINES)
def test_options_are_refused_in_python_as_on_the_command_line(engine: str) -> None:
    Options().check(engine)
    for name, option in OPTIONS.items():
        value = option.choices[-1] if option.choices else "x"
        if option.choices and value == getattr(Options(), name):
            value = option.choices[0]
        options = Options(**{name: value})
        if engine in option.engines or value in option.neutral:
            options.check(engine)
        else:
            with pytest.raises(UnsupportedError, match=f"^{name}='{value}' is only supported by the "):
                options.check(engine)


def test_the_table_of_options_has_a_line_for_each(capfd: pytest.CaptureFixture[str]) -> None:
    shown = run_here(capfd, "options").out.splitlines()
    assert len(shown) == len(OPTIONS) + 2
    assert {line.count("|") - line.count("\\|") for line in shown} == {6}
