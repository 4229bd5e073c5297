"""A real Prometheus scrapes a live server under load, and every query of the dashboard has an answer."""

import asyncio
import json
import math
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dlcb.loadtest import launch
from dlcb.loadtest.connection import Connection
from dlcb.loadtest.drive import Request, alone, closed_loop

pytestmark = pytest.mark.timeout(180)

ROOT = Path(__file__).parents[2]
DASHBOARD = json.loads((ROOT / "docker/grafana/dashboards/dlcb.json").read_text())
QUERIES = {
    f"{panel['title']} {target['refId']}": target["expr"]
    for panel in DASHBOARD["panels"]
    for target in panel["targets"]
}
CONFIG = """
global: {scrape_interval: 500ms, evaluation_interval: 1s}
scrape_configs:
  - job_name: dlcb
    static_configs: [{targets: ["127.0.0.1:%d"]}]
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    folder = tmp_path_factory.mktemp("server")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DLCB_CACHE", str(folder / "cache"))
        config = Path(__file__).with_name("models.yaml")
        with launch.server(config, log=folder / "log", ready_within=120) as port:
            yield port


@pytest.fixture(scope="module")
def prometheus(
    server: int, tmp_path_factory: pytest.TempPathFactory, require_tool: Callable[[str], Path]
) -> Iterator[int]:
    folder = tmp_path_factory.mktemp("prometheus")
    (folder / "prometheus.yml").write_text(CONFIG % server)
    port = launch.free_port()
    command = [
        str(require_tool("prometheus")),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={launch.HOST}:{port}",
    ]
    with launch.process(command, port, "/-/ready", folder / "log"):
        yield port


def ask(prometheus: int, query: str) -> list[dict[str, Any]]:
    """The instant vector of a query: a list of {metric, value: [time, text]}."""
    where = f"http://{launch.HOST}:{prometheus}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    with urllib.request.urlopen(where, timeout=10) as answer:
        return json.load(answer)["data"]["result"]


def requests_of_two_models() -> list[Request]:
    random = np.random.default_rng()
    shapes = [("perceptron", (rows, 64)) for rows in (1, 2, 3, 5)]
    shapes += [("standardize", shape) for shape in ((7,), (3, 5), (2, 3, 4))]
    drawn = [(model, {"x": random.standard_normal(shape).astype(np.float32)}) for model, shape in shapes]
    return [Request.of(model, inputs, "binary", None) for model, inputs in drawn]


async def refused(port: int) -> int:
    connection = await Connection.open(launch.HOST, port)
    answer = await connection.request("POST", "/v2/models/perceptron/infer", {}, b'{"inputs": [')
    connection.close()
    return answer.status


def scraped_often(prometheus: int) -> bool:
    found = ask(prometheus, 'min(count_over_time(dlcb_requests_total{status=~"200|400"}[1m]))')
    return bool(found) and float(found[0]["value"][1]) >= 5


def all_hit(prometheus: int) -> bool:
    """Whether both models hit the shape cache: the one of any rank does only when its kernels are there."""
    found = ask(prometheus, 'sum by (model) (rate(dlcb_shape_cache_requests_total{result="hit"}[1m])) > 0')
    return len(found) == 2


@pytest.fixture(scope="module")
def scraped(server: int, prometheus: int) -> int:
    """Prometheus after it scraped the server several times while requests ran."""
    requests = requests_of_two_models()
    answers = asyncio.run(alone(launch.HOST, server, requests))
    expected = [
        Request(one.path, one.headers, one.body, one.shapes, answer)
        for one, answer in zip(requests, answers, strict=True)
    ]
    enough = threading.Event()
    failures: list[str] = []

    def load() -> None:
        while not enough.is_set():
            tally = asyncio.run(
                closed_loop(launch.HOST, server, expected, connections=4, seconds=0.5, tolerance=1e-5)
            )
            failures.extend(tally.complaints)
            failures.extend(["not refused"] * (asyncio.run(refused(server)) != 400))

    loading = threading.Thread(target=load)
    loading.start()
    try:
        deadline = time.monotonic() + 60
        while not (scraped_often(prometheus) and all_hit(prometheus)):
            assert time.monotonic() < deadline, "no five scrapes with requests and hits in a minute"
            time.sleep(0.2)
    finally:
        enough.set()
        loading.join()
    assert not failures
    return prometheus


@pytest.mark.parametrize("name", QUERIES)
def test_query_has_an_answer(scraped: int, name: str) -> None:
    query = QUERIES[name].replace("$__rate_interval", "1m").replace("$model", ".*")
    assert "$" not in query
    values = [float(one["value"][1]) for one in ask(scraped, query)]
    assert values, f"{query} gave nothing"
    assert not any(math.isnan(value) for value in values), f"{query} gave {values}"


def test_the_first_panel_shows_both_models_hitting(scraped: int) -> None:
    rate, ratio = (target["expr"] for target in DASHBOARD["panels"][0]["targets"])
    for model in ("perceptron", "standardize"):
        fill = {"$__rate_interval": "1m", "$model": model}
        here = [rate, ratio]
        for variable, value in fill.items():
            here = [query.replace(variable, value) for query in here]
        hits = [one for one in ask(scraped, here[0]) if one["metric"]["result"] == "hit"]
        assert sum(float(one["value"][1]) for one in hits) > 0
        (share,) = ask(scraped, here[1])
        assert 0 < float(share["value"][1]) <= 1


def test_the_model_variable_lists_the_models(scraped: int) -> None:
    (variable,) = DASHBOARD["templating"]["list"]
    assert variable["query"]["query"] == "label_values(dlcb_request_seconds_count, model)"
    found = {one["metric"]["model"] for one in ask(scraped, "dlcb_request_seconds_count")}
    assert found >= {"perceptron", "standardize"}


def test_the_server_measures_what_the_client_saw(scraped: int, server: int) -> None:
    """A request more is a request more in every count that speaks of requests."""
    (request, *_) = requests_of_two_models()

    def counts() -> dict[str, float]:
        with urllib.request.urlopen(f"http://{launch.HOST}:{server}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        wanted = (
            'dlcb_requests_total{model="perceptron",status="200"}',
            'dlcb_request_seconds_count{model="perceptron",phase="total"}',
            'dlcb_request_seconds_count{model="perceptron",phase="queue"}',
            'dlcb_batch_requests_sum{model="perceptron"}',
        )
        found = dict(line.rsplit(" ", 1) for line in lines if line.startswith(wanted))
        assert len(found) == len(wanted), found
        return {name: float(value) for name, value in found.items()}

    before = counts()
    asyncio.run(alone(launch.HOST, server, [request] * 3))
    after = counts()
    assert {name: after[name] - before[name] for name in before} == dict.fromkeys(before, 3.0)


def test_kept_plans_are_counted(scraped: int) -> None:
    """Four shapes were sent to `perceptron`, alone first, so at least four plans are kept."""
    (kept,) = ask(scraped, 'dlcb_shape_cache_entries{model="perceptron"}')
    assert float(kept["value"][1]) >= 4
