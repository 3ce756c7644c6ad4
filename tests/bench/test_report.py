"""The page with the figures of the papers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_report_shows_the_figures_and_lists_the_others() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "report.py"], capture_output=True, text=True, check=True
    )
    page = (ROOT / "build" / "report.html").read_text()
    assert done.stdout == "open build/report.html\n"
    for what in ("figure 15", "figure 16", "figures 10 and 11", "figure 12", "figure 13", "tables 1 and 2"):
        assert what in page
    assert page.count("<pre>") == page.count('<p class="about">') >= 9
    assert page.count("data:image/svg+xml") >= 9
    assert "needs a Cell processor" in page
    assert 'src="http' not in page  # it makes no request
