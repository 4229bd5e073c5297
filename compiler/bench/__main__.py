"""`python -m dlcb.compiler.bench`: the benchmark where the server's packages are absent; `dlcb bench` is the
same command."""

from dlcb.compiler.bench.cli import app

app()
