"""A process whose GPU is lost ends, and is replaced as any that dies."""

from __future__ import annotations

import subprocess
import sys

import pytest

from dlcb.server.lost_device import LOST

SCRIPT = """
import sys
from types import SimpleNamespace
from dlcb.server.lost_device import end_if_lost

def synchronize():
    {does}

used = SimpleNamespace(synchronize=synchronize, is_initialized=lambda: {used})
sys.modules["torch"] = SimpleNamespace(cuda=used)
end_if_lost({device!r})
"""
FAILS = "raise RuntimeError('CUDA error: device-side assert triggered')"


@pytest.mark.parametrize(
    ("device", "used", "does", "code"),
    [
        ("cuda", True, FAILS, LOST),
        ("cuda", True, "pass", 0),
        ("cuda", False, FAILS, 0),
        ("cpu", True, FAILS, 0),
    ],
)
def test_it_ends_where_the_device_answers_nothing(device: str, used: bool, does: str, code: int) -> None:
    script = SCRIPT.format(does=does, device=device, used=used)
    command = [sys.executable, "-c", script]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert ended.returncode == code, ended.stderr
    assert ("the GPU is lost" in ended.stderr) is (code == LOST)
