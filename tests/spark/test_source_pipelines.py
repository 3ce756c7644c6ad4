"""A declarative pipeline with a join, run by Spark's own command."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark.pipelines", reason="pipelines came with PySpark 4.1")
pytest.importorskip("grpc", reason="Spark Connect needs the extra 'connect'")

import pyspark

from example_runs import EXAMPLES, expected_pairs, load_example, sink_pairs

COMMAND = Path(pyspark.__file__).parent / "bin" / "spark-pipelines"
PORT = {"SPARK_TESTING": "1"}
"""PySpark then takes a free port for the Connect server of the pipeline, not always the same one."""


@pytest.mark.sources
@pytest.mark.timeout(1800)
def test_a_pipeline_joins_its_inputs(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES / "pipeline", tmp_path / "pipeline")
    specification = tmp_path / "pipeline" / "spark-pipeline.yml"
    text = specification.read_text()
    specification.write_text(text.replace("file:///tmp/handshake-pipeline", f"file://{tmp_path}/storage"))
    rows = load_example("_offers").make_rows()
    for side, given in rows.items():
        load_example("_scaffold").write_files(given, tmp_path / "pipeline" / "data" / side, files=2)
    run_pipeline(tmp_path / "pipeline")
    wanted = expected_pairs(*rows.values())
    assert sink_pairs(str(tmp_path / "pipeline" / "spark-warehouse" / "matches")) == wanted
    assert len(wanted) > 1000


def run_pipeline(folder: Path) -> None:
    """Run the command in the folder of a pipeline, as its guide says."""
    from handshake.engines.spark.java import java_home

    unwanted = ("SPARK_REMOTE", "PYSPARK_DRIVER_PYTHON")
    own = {name: value for name, value in os.environ.items() if name not in unwanted}
    done = subprocess.run(
        [COMMAND, "run"], cwd=folder, capture_output=True, text=True, check=False,
        env={**own, "JAVA_HOME": java_home(), "PYSPARK_PYTHON": sys.executable, **PORT},
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
