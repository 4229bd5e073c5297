"""`python -m dlcb.server` and the `dlcb` command."""

from __future__ import annotations

from dlcb.server.cli import app


def main() -> None:
    """Run the command line."""
    app()


if __name__ == "__main__":
    main()
