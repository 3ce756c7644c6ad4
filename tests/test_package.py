"""The distribution: its name, what the wheel contains, and that it runs where nothing else of ours is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy
import pytest

import handshake

ROOT = Path(__file__).parent.parent
NAME = f"handshake_join-{handshake.__version__}"
COMPILED = (".so", ".pyd", ".dylib", ".dll", ".a", ".o", ".pyc", ".nbi", ".nbc")
TEXTS = [
    path
    for folder in ("src", "bench", "tools", "scripts", "docs", "examples")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in {"", ".py", ".md"} and path.is_file()
]


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel and the sdist, as `make dist` does."""
    folder = tmp_path_factory.mktemp("dist")
    built = run(sys.executable, "-m", "hatchling", "build", "-d", str(folder), cwd=ROOT)
    assert built.returncode == 0, built.stderr
    return folder


def run(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command without Python's own settings from the environment."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, env=environment)


def test_make_dist_builds_the_same():
    assert re.search(
        r"^dist: .*\n\t@\$\(BIN\)/python -m hatchling build", (ROOT / "Makefile").read_text(), re.M
    )


def test_the_wheel_has_plain_files_of_the_package_alone(dist):
    with zipfile.ZipFile(dist / f"{NAME}-py3-none-any.whl") as wheel:
        members = wheel.infolist()
    assert {member.filename.split("/")[0] for member in members} == {"handshake", f"{NAME}.dist-info"}
    assert {"handshake/__init__.py", "handshake/py.typed", f"{NAME}.dist-info/licenses/LICENSE"} <= {
        member.filename for member in members
    }
    assert [m.filename for m in members if m.filename.endswith(COMPILED)] == []
    assert [m.filename for m in members if m.file_size > 1_000_000] == []


def test_the_sdist_has_what_building_and_testing_need(dist):
    with tarfile.open(dist / f"{NAME}.tar.gz") as sdist:
        names = {name.split("/", 2)[1] for name in sdist.getnames()}
    assert {"pyproject.toml", "Makefile", "requirements-dev.txt", "src", "tests", "scripts", "docs"} <= names


def test_the_wheel_runs_the_readme_in_an_empty_environment(dist, tmp_path):
    """The packages that it depends on are those of this environment, so that no network is needed."""
    made = run(sys.executable, "-m", "venv", "--without-pip", "empty", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    python = tmp_path / "empty/bin/python"
    wheel = dist / f"{NAME}-py3-none-any.whl"
    pip = (sys.executable, "-m", "pip", "--python", str(python), "install", "--no-index", "--no-deps")
    installed = run(*pip, "--no-compile", "--disable-pip-version-check", str(wheel), cwd=tmp_path)
    assert installed.returncode == 0, installed.stderr
    (packages,) = (tmp_path / "empty/lib").glob("python*/site-packages")
    (packages / "dependencies.pth").write_text(str(Path(numpy.__file__).parents[1]))

    code, output = re.findall(r"```python\n(.*?)```\n+```\n(.*?)```", (ROOT / "README.md").read_text(), re.S)[
        0
    ]
    where = "import handshake.joins.join as used; print(used.__file__)\n"
    done = run(str(python), "-I", "-c", where + code, cwd=tmp_path)
    assert done.stderr == ""
    assert done.stdout == f"{packages}/handshake/joins/join.py\n{output}"
    shown = run(str(tmp_path / "empty/bin/handshake"), "--version", cwd=tmp_path)
    assert shown.stdout == f"handshake {handshake.__version__}\n"


def test_no_text_installs_the_package_of_that_name_from_an_index():
    """On the package index, `handshake` is another project."""
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "Makefile", *TEXTS):
        assert not re.search(r"pip install[^\n]*[\s'\"]handshake(?![\w-])", path.read_text()), path
