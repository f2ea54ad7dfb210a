"""The log of `localspec serve` in a pipe: it holds up no answer, and ends no server."""

import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx2
import pytest

from tests.support.served import COMPLETIONS, PATIENCE

ONE, SEVERAL = ("demo",), ("demo", "--idle-timeout", "600")
_REQUESTS = 200  # whose lines a pipe of one page does not hold


@pytest.mark.llama
@pytest.mark.parametrize("is_closed", [False, True], ids=["unread", "closed"])
@pytest.mark.parametrize("models", [ONE, SEVERAL], ids=["one", "several"])
def test_a_log_that_nobody_reads(models: tuple[str, ...], is_closed: bool) -> None:
    fcntl = pytest.importorskip("fcntl")
    command = [sys.executable, "-m", "localspec", "serve", *models, "-t", "1", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            if hasattr(fcntl, "F_SETPIPE_SZ"):
                fcntl.fcntl(process.stderr, fcntl.F_SETPIPE_SZ, 4096)
            while (url := re.search("Listening on (http[^ ]+)", process.stderr.readline())) is None:
                assert process.poll() is None
            if is_closed:
                process.stderr.close()
            with httpx2.Client(base_url=url[1], timeout=PATIENCE, trust_env=False) as client:
                for _ in range(2):
                    asked = {"prompt": "a", "max_tokens": 2}
                    assert client.post(COMPLETIONS, json=asked).status_code == 200
                    for _ in range(_REQUESTS):
                        assert client.get("/v1/models").status_code == 200
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()


@pytest.mark.llama
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("models", [ONE, SEVERAL], ids=["one", "several"])
def test_a_log_on_a_full_disk(models: tuple[str, ...]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, "-m", "localspec", "serve", *models, "-t", "1", "--port", port]
    with open("/dev/full", "w") as full, subprocess.Popen(command, stderr=full) as process:
        try:
            while True:
                try:
                    httpx2.get(f"http://127.0.0.1:{port}/health", trust_env=False)
                    break
                except httpx2.ConnectError:
                    assert process.poll() is None
                    time.sleep(0.05)
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()
