"""TensorBoard's server as a user has it: it starts, shows a scalar and ends; and whether it can be imported at all."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import IO, Any

from trackbed.release.probe import environment
from trackbed.validate import Context, Outcome, number, skip, tail, unreadable
from trackbed.validate.stack.versions import MESSAGES

TAG = "validate/loss"
SHOWN_WITHIN = 15.0  # seconds from the server's address to a scalar on its page


def measure_server(context: Context, seconds: float = 40.0) -> dict[str, Any]:
    """Serve one curve on a free port: seconds until the address is up, until the curve is shown, and until it stops."""
    if fault := broken():
        return {"broken": fault}
    from torch.utils.tensorboard import SummaryWriter

    with tempfile.TemporaryDirectory(prefix="trackbed-") as folder, tempfile.TemporaryFile("w+b") as said:
        with SummaryWriter(folder) as writer:
            writer.add_scalar(TAG, 1.0, 0)
        with _server(folder, said) as server:
            until = time.monotonic() + seconds
            url = _until(lambda: _address(said), server, until)
            started = time.monotonic()
            shown = bool(url) and _until(lambda: TAG in _scalars(str(url)), server, until)
            waited = time.monotonic() - started
            server.terminate()
            stopped = _stops(server)
        return {"url": url or "", "shown": waited if shown else None, "stopped": stopped, "said": tail(said)}


def judge_server(measured: object) -> Outcome:
    """A server that starts and shows nothing looks healthy to a port check."""
    found = measured if isinstance(measured, Mapping) else {}
    if found.get("broken"):
        return deferred(str(found["broken"]))
    url, shown, stopped = found.get("url"), found.get("shown", -1), found.get("stopped")
    if not isinstance(url, str) or (shown is not None and number(shown) is None) or not isinstance(stopped, bool):
        return unreadable("TensorBoard's server", measured)
    expected = "a scalar on its page within 15 s, and an end when asked to"
    evidence = str(found.get("said", ""))
    text, remedy = "", "make setup; then look at it alone: trackbed monitor"
    if not url:
        text = (
            "TensorBoard's server does not start: " + (evidence.strip().splitlines() or ["it says nothing"])[-1][:200]
        )
    elif shown is None or shown > SHOWN_WITHIN:
        text = f"the scalar is {'not shown' if shown is None else f'shown after {shown:.0f} s'}"
        remedy = "put TensorBoard's folder on a local disk, and free the processor; then: trackbed monitor --check URL"
    elif not stopped:
        text, remedy = (
            "TensorBoard does not end at SIGTERM",
            "run it under an init: docker run --init, compose `init: true`",
        )
    if text:
        return Outcome(status="fail", observed=text, expected=expected, evidence=evidence, remedy=remedy)
    return Outcome(status="pass", observed=f"a scalar is shown after {shown:.1f} s, and it stops", expected=expected)


def broken() -> str:
    """Why TensorBoard's protocol messages cannot be imported, which is stack.imports' to report; empty when they can.

    Raises nothing: another protobuf raises errors of its own making.
    """
    try:
        importlib.import_module(MESSAGES)
    except Exception as error:  # noqa: BLE001 - whatever it raises is the finding
        return " ".join(f"{type(error).__name__}: {error}".split())
    return ""


def deferred(fault: str) -> Outcome:
    """The outcome where TensorBoard cannot be imported."""
    return skip(f"TensorBoard cannot be imported: {fault}", "do what stack.drift and stack.imports say")


@contextmanager
def _server(folder: str, said: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    # Port 0: the system gives a free one, and TensorBoard says which.
    words = ["--logdir", folder, "--host", "127.0.0.1", "--port", "0", "--load_fast", "false"]
    command = [sys.executable, "-m", "tensorboard.main", *words]
    server = subprocess.Popen(command, stdout=said, stderr=said, stdin=subprocess.DEVNULL, env=environment())
    try:
        yield server
    finally:
        server.kill()
        server.wait()


def _address(said: IO[bytes]) -> str:
    match = re.search(r"at (http://\S+)", tail(said))
    return match[1] if match else ""


def _scalars(url: str) -> str:
    with suppress(OSError), urllib.request.urlopen(f"{url.rstrip('/')}/data/plugin/scalars/tags", timeout=5) as answer:
        return str(answer.read().decode("utf-8", "replace"))
    return ""


def _until(look: Any, server: subprocess.Popen[bytes], until: float) -> Any:
    """What `look` finds, asked again until it finds something, the server has ended or the time is over."""
    while server.poll() is None and time.monotonic() < until:
        if found := look():
            return found
        time.sleep(0.05)
    return None


def _stops(server: subprocess.Popen[bytes]) -> bool:
    try:
        server.wait(10)
    except subprocess.TimeoutExpired:
        return False
    return True
