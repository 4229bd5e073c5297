"""Log records as JSON lines on standard error: one object a record, with time, level, logger, message and
whatever the call gave as `extra={"fields": {...}}`.
"""

from __future__ import annotations

import logging
import sys
import time

import orjson


class JsonLines(logging.Formatter):
    """One record, one line; `process` says which of the server's processes writes."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "process": self._process,
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str).decode()


def configure(level: str = "INFO", process: str = "front") -> None:
    """Send everything of this process to standard error. uvicorn's own access log stays off: the hot path
    writes none."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(process))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    logging.getLogger("uvicorn.access").disabled = True
