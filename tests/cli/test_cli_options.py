"""Options and back ends: what was typed is used, or refused."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
import pyarrow as pa
import pytest
import typer

import handshake as hs
from cli_runs import run_here
from handshake.cli.app import app, load
from handshake.cli.options import engines_of
from handshake.errors import UnsupportedError
from handshake.joins.access import ACCESS_METHODS
from handshake.joins.plan import ALGORITHMS
from handshake.options import ENGINES, OPTIONS, CoreOptions, GivenOptions, Options, PairOptions

BACKENDS = {
    "run": ("local", "spark", "circuit"),
    "join": ("local", "spark", "circuit"),
    "explain": ("local", "spark", "circuit"),
    "demo": ("local", "spark"),
}
COMMON = {
    "run": {
        "query", "input", "output", "backend", "bad", "strict", "cores", "metrics", "why", "live", "live_at",
    },
    "join": {
        "left", "right", "on", "window", "left_window", "right_window", "time", "left_time", "right_time",
        "backend", "cores", "how", "output", "metrics", "explain", "live", "live_at",
    },
    "explain": {"query", "backend", "circuit"},
    "demo": {"seconds", "rate", "save", "backend", "live", "live_at"},
}  # fmt: skip
"""The options that every back end of a command uses."""
ARGUMENTS = {
    "run": ["nowhere.sql"],
    "join": ["nowhere.csv", "nowhere.csv", "--on", "l.x = r.a", "--window", "9 tuples"],
    "explain": ["nowhere.sql"],
    "demo": [],
}
VALUES = {
    "algorithm": "cell", "method": "scan", "overload": "shed", "join": "ordered", "divider": "serial",
    "simulator": "amaranth", "without": "narrow_joins", "vcd": "w.vcd", "dot_file": "g.dot",
    "svg_file": "p.svg", "input_adapter": "udp", "output_adapter": "cpu",
    "master": "local[2]", "state_dir": "folder", "device": "gpu",
}  # fmt: skip
"""Where a number will not do."""
COMMANDS = {name: load(name) for name in BACKENDS}
USES = {command: engines_of(command) for command in COMMANDS}
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
    return {each.name: each for each in COMMANDS[command].params}


def _option(command: str, name: str, value: str | None = None) -> list[str]:
    """Return an option as a user types it."""
    parameter = _parameters(command)[name]
    flag = parameter.opts[0]
    return [flag] if parameter.is_flag else [flag, value or VALUES.get(name, "3")]


def _arguments(command: str, option: list[str], backend: str) -> list[str]:
    explains = command == "explain" and backend == "circuit"
    return [command, *ARGUMENTS[command], *option, *(["--circuit"] if explains else ["--backend", backend])]


def _show_backends(command: str, *backends: str) -> str:
    if command != "explain":
        return f"--backend {' or '.join(backends)}"
    return " or ".join("--circuit" if each == "circuit" else f"--backend {each}" for each in backends)


@pytest.mark.parametrize(
    "name", [name for name in typer.main.get_command(app).commands if name not in ("options", "bench")]
)
def test_the_list_of_commands_shows_the_first_line_of_their_help(name: str) -> None:
    line = typer.main.get_command(app).commands[name].help
    assert load(name).help.startswith(f"{line}\n")


def test_the_list_of_commands_imports_no_engine() -> None:
    """So that `handshake --help` answers within 0.3 seconds; the rest takes a second to import."""
    code = "import sys; from handshake.cli.app import run; run(['--help']); print(*sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "multijoin" in shown
    assert not {"numpy", "pyarrow", "numba", "sqlglot", "rich"} & set(shown.split())


@pytest.mark.parametrize("command", USES)
def test_every_option_is_common_or_somebodys(command: str) -> None:
    assert set(_parameters(command)) == COMMON[command] | set(USES[command])
    assert not COMMON[command] & set(USES[command])


@pytest.mark.parametrize(("command", "name", "backend"), IDLE)
def test_what_a_back_end_would_ignore_is_refused(
    capfd: pytest.CaptureFixture[str], command: str, name: str, backend: str
) -> None:
    option = _option(command, name)
    told = run_here(capfd, *_arguments(command, option, backend)).complaint
    assert told == f"{option[0]} is only supported by {_show_backends(command, *USES[command][name])}"


@pytest.mark.parametrize(("command", "name", "backend"), USED)
def test_what_a_back_end_uses_is_not_refused(
    capfd: pytest.CaptureFixture[str], command: str, name: str, backend: str
) -> None:
    """The complaint is about the file, which is not there: it is looked for after options."""
    option = _option(command, name, "cpu" if name == "device" else None)  # a GPU need not be here
    assert "nowhere" in run_here(capfd, *_arguments(command, option, backend)).complaint


def test_a_default_that_is_typed_counts(capfd: pytest.CaptureFixture[str]) -> None:
    for name, value in (("buffer", "8"), ("simulator", "auto"), ("join", "auto"), ("divider", "pipelined")):
        told = run_here(capfd, *_arguments("run", _option("run", name, value), "local")).complaint
        assert told == f"--{name} is only supported by --backend circuit"


@pytest.mark.parametrize(("name", "value"), [("algorithm", "low_latency"), ("overload", "block")])
@pytest.mark.parametrize("backend", ["local", "spark", "circuit"])
def test_a_value_that_asks_for_nothing_may_be_spelled_out(
    capfd: pytest.CaptureFixture[str], name: str, value: str, backend: str
) -> None:
    options = [*_option("join", name, value), "--method", "auto", "--cores", "2"]
    assert "nowhere" in run_here(capfd, *_arguments("join", options, backend)).complaint


def test_a_back_end_that_nobody_knows_is_told_of_first(capfd: pytest.CaptureFixture[str]) -> None:
    told = run_here(capfd, *_arguments("run", ["--vcd", "w.vcd"], "circiut")).complaint
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
        f"--pace 2 is for files, and S comes from '{path}' at the pace of its sender; leave it out"
    )


# The options of runs, from which the command line is made.


def test_the_typed_dict_and_the_entries_agree() -> None:
    given, entries = get_type_hints(GivenOptions), get_type_hints(Options)
    assert given == entries
    assert set(given) == set(OPTIONS)


def test_choices_are_those_of_the_joins() -> None:
    found = [OPTIONS[name].choices for name in ("method", "algorithm")]
    assert found == [("auto", *ACCESS_METHODS), ALGORITHMS]


def _other_value(name: str) -> Any:
    """Return a value that an option may have, and that is not its default."""
    option, default = OPTIONS[name], getattr(Options(), name)
    if option.choices:
        return next(choice for choice in reversed(option.choices) if choice != default)
    kind = get_type_hints(Options)[name]
    values = {Sequence[str]: ["x"], int: 3, float: 2.0, bool: not default, str: "x"}
    return next((value for each, value in values.items() if each in (kind, *get_args(kind))), print)


@pytest.mark.parametrize("engine", ENGINES)
def test_options_are_refused_in_python_as_on_the_command_line(engine: str) -> None:
    Options().check(engine)
    for name, option in OPTIONS.items():
        value = _other_value(name)
        options = Options(**{name: value})
        if engine in option.engines or value in option.neutral:
            options.check(engine)
        else:
            with pytest.raises(
                UnsupportedError, match=f"^{re.escape(f'{name}={value!r}')} is only supported by the "
            ):
                options.check(engine)


NOT_CHOSEN = {
    "method": "unknown access method 'tim'; choose auto, scan, hash, band",
    "algorithm": "unknown algorithm 'tim'; choose three_step, cell, handshake, low_latency",
    "device": "unknown device 'tim'; choose cpu or gpu",
    "order": "unknown order 'tim'; choose arrival, any, time; did you mean 'time'?",
    "overload": "unknown overload 'tim'; choose block or shed",
    "state": "unknown state 'tim'; choose directory or store",
    "join": "unknown arrangement of joins 'tim'; choose auto, handshake, ordered",
    "divider": "unknown divider 'tim'; choose pipelined, serial, host",
    "input_adapter": "unknown input adapter 'tim'; choose none, udp, cpu",
    "output_adapter": "unknown output adapter 'tim'; choose none or cpu",
    "simulator": "unknown simulator 'tim'; choose auto, amaranth, cxxrtl",
}
WHOLE = {
    "cores": 1, "room": 1, "segments": 1, "groups": 1, "text": 1, "buffer": 1, "window_tuples": 1,
    "udp_port": 1, "delay": 0,
}  # fmt: skip
TEXTS = ("state_dir", "master", "name", "result_time", "idle", "results_to", "refresh", "vcd")
OF_KIND = [
    *((f"whole number from {least} up", name, (least - 1, 1.5, "4", True)) for name, least in WHOLE.items()),
    ("number above 0", "pace", (0, -1, "2", True)),
    *(("True or False", name, ("no", 1, None)) for name in ("adapt", "pin", "optimised")),
    *(("text", name, (5,)) for name in TEXTS),
    *(("list of texts", name, ("S.a", [1])) for name in ("nullable", "without")),
    ("function", "on_shed", (3,)),
    ("text or a path or a function", "late_to", (5,)),
]
BAD_VALUES = [
    *((name, "tim", message) for name, message in NOT_CHOSEN.items()),
    *(
        (name, value, f"{name} is {'' if kind[0] == 'T' else 'a '}{kind}; {value!r} was given")
        for kind, name, values in OF_KIND
        for value in values
    ),
]
QUERY = "CREATE INPUT STREAM S (a int); SELECT a FROM S INTO T"


def test_bad_values_of_every_option_are_listed_here() -> None:
    assert {name for name, _, _ in BAD_VALUES} == set(OPTIONS)


@pytest.mark.parametrize(("name", "value", "message"), BAD_VALUES)
def test_a_bad_value_is_refused_by_every_front_door(name: str, value: Any, message: str) -> None:
    table, schema = {"x": [1]}, pa.schema([("x", pa.int64())])
    doors = [
        *(partial(hs.run, QUERY, {"S": {"a": [1]}}, engine) for engine in ENGINES),
        *(partial(hs.join, table, table, window="4 tuples", engine=engine) for engine in ENGINES),
        *(partial(hs.explain, table, table, window="4 tuples", engine=engine) for engine in ENGINES),
        *(partial(hs.explain, QUERY, engine=engine) for engine in ENGINES),
    ]
    if name in PairOptions.__annotations__:
        doors += [partial(hs.Join, left=schema, right=schema), partial(hs.prepare, schema, schema)]
    if name in CoreOptions.__annotations__:
        doors.append(partial(hs.join_streams, {"a": table, "b": table}, "a.x = b.x"))
    if name in ("cores", "optimised"):
        doors.append(partial(hs.Query, QUERY))
    if name == "cores":
        doors += [partial(hs.asof, table, table, time="x"), partial(hs.nearest, table, table, by="l.x")]
    for door in doors:
        with pytest.raises(UnsupportedError, match=f"^{re.escape(message)}$"):
            door(**{name: value})


def test_numbers_of_numpy_are_numbers() -> None:
    assert hs.join({"x": [1]}, {"a": [1]}, "l.x = r.a", cores=np.int64(1)).num_rows == 1


def test_the_table_of_options_has_a_line_for_each(capfd: pytest.CaptureFixture[str]) -> None:
    shown = run_here(capfd, "options").out.splitlines()
    assert len(shown) == len(OPTIONS) + 2
    assert {line.count("|") - line.count("\\|") for line in shown} == {6}
