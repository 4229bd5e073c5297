"""What every test may rely on: system tools found or the test skipped, and on CI no skip at all.

A skip hides a test, so where CI=true a skip is a failure. The exception is hardware that cannot be installed:
its reason starts with "hardware:".
"""

import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

ON_CI = os.environ.get("CI") == "true"


OPTIONAL_PLUGINS = {  # plugin: its option in pyproject.toml, its marker
    "pytest_timeout": ("timeout", "timeout(seconds): the longest a test may take"),
    "pytest_asyncio": ("asyncio_default_fixture_loop_scope", "asyncio: a coroutine"),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    # The GPU tests run where these plugins may be missing: their options must then mean nothing, not fail.
    for plugin, (option, _) in OPTIONAL_PLUGINS.items():
        if importlib.util.find_spec(plugin) is None:
            parser.addini(option, f"unused without {plugin}")


def pytest_configure(config: pytest.Config) -> None:
    for plugin, (_, marker) in OPTIONAL_PLUGINS.items():
        if importlib.util.find_spec(plugin) is None:
            config.addinivalue_line("markers", marker)


@pytest.fixture(scope="session")
def require_tool() -> Callable[[str], Path]:
    """A function that finds an executable beside Python or on the path, else skips the test."""

    def find(name: str) -> Path:
        beside_python = Path(sys.executable).with_name(name)
        found = str(beside_python) if beside_python.exists() else shutil.which(name)
        if found is None:
            pytest.skip(f"needs {name}, which is not on the path")
        return Path(found)

    return find


def _fail_a_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    expected_failure = hasattr(report, "wasxfail")
    if not (ON_CI and report.skipped) or expected_failure:
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    if not reason.removeprefix("Skipped: ").startswith("hardware:"):
        report.outcome = "failed"
        report.longrepr = f"a skip on CI is a failure: {report.nodeid}: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _fail_a_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _fail_a_skip(report)
    return report
