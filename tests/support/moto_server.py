"""A server that speaks the protocol of S3, from the package moto, in a process of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError

import pyarrow.fs as fs
import pytest

from waiting import wait_until

ROOT = Path(__file__).parents[2]
PLACES = (Path(sys.executable).parent, ROOT / "build" / "sources" / "bin")
"""Folders that may have the program: this environment, and the one of `make sources`."""
BUCKET = "handshake"


@dataclass(frozen=True)
class ObjectStore:
    """The address of the server, and what programs need to reach it."""

    address: str

    @property
    def environment(self) -> dict[str, str]:
        """The variables that hold credentials, as on AWS."""
        return {
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def uri(self, name: str) -> str:
        """Return the URI of a folder in the bucket for pyarrow."""
        return f"s3://{BUCKET}/{name}?endpoint_override={self.address}&scheme=http"

    def files(self) -> fs.FileSystem:
        """Return the store as pyarrow's filesystem."""
        return fs.S3FileSystem(
            access_key="key", secret_key="secret", endpoint_override=self.address, scheme="http",
            region="us-east-1", allow_bucket_creation=True,
        )  # fmt: skip

    def names(self, folder: str) -> list[str]:
        """Return the files below a folder of the bucket."""
        found = self.files().get_file_info(
            fs.FileSelector(f"{BUCKET}/{folder}", recursive=True, allow_not_found=True)
        )
        return [info.path for info in found if info.is_file]


@contextmanager
def object_store(folder: Path, host: str = "127.0.0.1") -> Iterator[ObjectStore]:
    """Start a server with an empty bucket; skip the test if the package is not there.

    Args:
        folder: The folder for its log.
        host: The address at which it listens: loopback unless given.
    """
    program = next((place / "moto_server" for place in PLACES if (place / "moto_server").exists()), None)
    if program is None:
        pytest.skip("the package moto[server] is not installed; make sources installs it")
    with socket.socket() as probe:
        probe.bind((host, 0))
        port = probe.getsockname()[1]
    with open(folder / "moto.log", "wb") as log:
        server = subprocess.Popen(
            [program, "-H", host, "-p", str(port)],
            stdout=log, stderr=log, start_new_session=True, env={**os.environ, "MOTO_PORT": str(port)},
        )  # fmt: skip
    try:
        store = ObjectStore(f"{host}:{port}")
        wait_until(lambda: _answers(store.address), what="an answer of the S3 server")
        store.files().create_dir(BUCKET)
        yield store
    finally:
        server.kill()
        server.wait()


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{address}/", timeout=5):
            return True
    except (URLError, OSError):
        return False
