"""A GPU that is lost to a process: after a kernel of PyTorch's that met a bad index, or a fault of the card,
each further call there fails. What the process holds is worth nothing then, and another takes its place."""

from __future__ import annotations

import logging
import os
import sys

LOST = 5  # the exit code

log = logging.getLogger("dlcb.device")


def end_if_lost(device: str) -> None:
    """To be called after a failure: end this process where its GPU answers nothing more."""
    torch = sys.modules.get("torch")  # the backend's, where it has one
    if device == "cpu" or torch is None or not torch.cuda.is_initialized():
        return  # what was never used is not lost
    try:
        torch.cuda.synchronize()
    except Exception as error:  # whatever the driver says
        said = str(error).strip().partition("\n")[0]
        log.critical("the GPU is lost to this process", extra={"fields": {"error": said}})
        logging.shutdown()
        os._exit(LOST)
