"""What a plan that is hot may cost to prepare: it was run so often that many more runs will follow."""

from __future__ import annotations


class Effort:
    """Libraries may plan the calls of a hot plan for as long as they like. Which of several ways is the
    fastest may be measured while `seconds` are left; `postponed` says that something was not, for want of
    them, and `gained` that a call goes another way than it would unmeasured."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.postponed = self.gained = False
