"""The worked example of docs/testing.md, and streams for tests of `handshake.testing`."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa

PAGE = Path(__file__).parents[2] / "docs/testing.md"
EVENT = pa.schema([("t", pa.timestamp("us", "UTC")), ("k", pa.int64()), ("x", pa.float64())])
START = datetime(2026, 1, 1, tzinfo=UTC)


def worked_example(monkeypatch: Any) -> list[Callable[..., None]]:
    """Return the tests of the page; its program is importable as `pipeline`."""
    blocks = dict(re.findall(r'```python title="(\w+)\.py"\n(.*?)```', PAGE.read_text(), re.DOTALL))
    for name in ("pipeline", "test_pipeline"):
        module = ModuleType(name)
        monkeypatch.setitem(sys.modules, name, module)
        exec(compile(blocks[name], f"{name}.py", "exec"), module.__dict__)
    return [each for name, each in vars(module).items() if name.startswith("test_")]
