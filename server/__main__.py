"""`python -m dlcb.server` and the `dlcb` command."""

from __future__ import annotations

from dlcb.server.cli import command


def main() -> None:
    """Run the command line."""
    command()()


if __name__ == "__main__":
    main()
