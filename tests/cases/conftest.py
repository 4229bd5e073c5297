"""A store for the cases, kept while they run."""

from pathlib import Path

import pytest

from dlcb.kernel_cache import LayeredStore, open_store


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> LayeredStore:
    return open_store(Path(tmp_path_factory.mktemp("cases")))
