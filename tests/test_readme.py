"""What the README and the docstrings show is what happens."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import handshake

ROOT = Path(__file__).parent.parent
_BLOCK = r"((?:(?!```).)*)```"
EXAMPLES = re.findall(rf"```python\n{_BLOCK}\n+```\n{_BLOCK}", (ROOT / "README.md").read_text(), re.DOTALL)
MODULES = [m.name for m in pkgutil.walk_packages(handshake.__path__, "handshake.")]


def test_the_readme_has_examples():
    assert len(EXAMPLES) >= 2


@pytest.mark.parametrize(("code", "output"), EXAMPLES)
def test_readme_examples_print_what_they_say(code, output):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout == output


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name):
    failed, _ = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert failed == 0


@pytest.mark.parametrize("name", handshake.__all__)
def test_everything_public_is_documented(name):
    public = getattr(handshake, name)
    assert name == "__version__" or (getattr(public, "__doc__", None) or type(public).__doc__)


def test_links_in_documents_lead_somewhere():
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert (page.parent / target).exists(), (page.name, target)
