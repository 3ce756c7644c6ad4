"""Tests of the check for plain English, with good and bad samples."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
_spec = importlib.util.spec_from_file_location("english", ROOT / "scripts/english.py")
assert _spec is not None
assert _spec.loader is not None
english = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(english)


def rules(source: str) -> list[str]:
    return [rule for _, rule, _ in english.check(source)]


@pytest.mark.parametrize(
    "source",
    [
        '"""Pipelined links: registers along a long wire."""\n',
        'def merge(a):\n    """Merge the open basic windows into one."""\n',
        'class Segment:\n    """The part of both windows that one join core holds."""\n',
        'class A:\n    @property\n    def late(self):\n        """The number of late rows."""\n',
        'def test_late_rows():\n    """Late rows are dropped and counted."""\n',
        "def feed(rows): ...\n",
        "def matched_rows(): ...\n",
        "def onQueryStarted(self, event): ...\n",
        'def show():\n    """Print the word `told` as the program writes it."""\n',
        "x = 1  # two comparisons instead of four\n",
    ],
)
def test_plain_sentences_pass(source: str) -> None:
    assert rules(source) == []


@pytest.mark.parametrize(
    ("source", "rule"),
    [
        ('"""What lies far apart: registers on long wires."""\n', "starts with a relative clause"),
        ('class A:\n    """Who joins whom, and when they do."""\n', "starts with a relative clause"),
        (
            'def size():\n    """The number of rows in a segment."""\n',
            "a function's docstring starts with a verb",
        ),
        (
            'def testing_rows():\n    """The rows that a test reads."""\n',
            "a function's docstring starts with a verb",
        ),
        ('def test_rows():\n    """What is late is dropped."""\n', "starts with a relative clause"),
        ('def test_rows():\n    """Rows come."""\n', "says too little"),
        ('def run():\n    """Do it."""\n', "says too little"),
        ('x = 1\n"""What the bound is."""\n', "a sentence starts with a relative clause"),
        ('x = 1\n"""The bound. Who passes it is late."""\n', "a sentence starts with a relative clause"),
        (
            'def run():\n    """Run all the given checks.\n\n    Args:\n        x: What is run.\n    """\n',
            "a sentence starts with a relative clause",
        ),
        ('def warn():\n    """Warn whoever did not ask for shed rows."""\n', "uncommon word 'whoever'"),
        ("x = 1  # told to the caller\n", "uncommon word 'told'"),
        ("def _made(): ...\n", "a function is named by a verb"),
        ("def settled(): ...\n", "a function is named by a verb"),
    ],
)
def test_puzzling_sentences_are_found(source: str, rule: str) -> None:
    assert rules(source) == [rule]


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("Rows come.\nWhat is late is dropped.\n", "a sentence starts with a relative clause"),
        ("- one item\n- besides,\n  another\n", "uncommon word 'besides'"),
        ("| a | so many rows |\n", "uncommon word 'so many'"),
        ("word " * 23 + "\n", "a line of 115 characters"),
    ],
)
def test_puzzling_sentences_of_documents_are_found(text: str, rule: str) -> None:
    assert [found for _, found, _ in english.check_markdown(text)] == [rule]


@pytest.mark.parametrize(
    "text",
    [
        "```\nWhat is told to whoever asks\n```\n",
        "Say *reported*, not *told*; `besides` is code.\n",
        "| before | after |\n|---|---|\n| So many rows. | N rows. |\n",
        f"| {'cell ' * 30} |\n",
        f"![{'a picture ' * 12}](x.svg)\n",
    ],
)
def test_code_examples_and_tables_of_documents_pass(text: str) -> None:
    assert list(english.check_markdown(text)) == []


def test_errors_outside_the_command_line_name_no_flags() -> None:
    source = 'raise ValueError("give fewer rows, or --pace 2")\n'
    assert rules(source) == []
    found = list(english.check(source, flags=False))
    assert [rule for _, rule, _ in found] == ["an error outside cli/ names a flag"]
    assert rules('raise ValueError("the row was told")\n') == ["uncommon word 'told'"]


def test_findings_are_printed_with_file_and_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "sample.py"
    path.write_text('def told():\n    """Return the rows that expired."""\n')
    assert english.main([str(tmp_path)]) == 1
    assert capsys.readouterr().out.startswith(f"{path}:1: a function is named by a verb: told\n")
    path.write_text('def expire():\n    """Return the rows that expired."""\n')
    assert english.main([str(path)]) == 0
