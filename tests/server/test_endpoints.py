"""The small routes: metadata, configuration, statistics, plan, coverage, metrics and the OpenAPI document."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from dlcb.server.app import web_application
from dlcb.server.endpoints import Endpoints
from dlcb.server.metrics import Metrics
from dlcb.server.settings import Server

ADMIN = {"X-API-Key": "admin-key"}
BODY = {"inputs": [{"name": "x", "shape": [2, 3], "datatype": "FP32", "data": [0.0] * 6}]}


def test_the_root_says_who_answers_and_where_to_go_on(client: httpx.Client) -> None:
    answer = client.get("/").json()
    assert answer["name"] == "dlcb" and answer["version"] == client.get("/v2").json()["version"]
    for link in answer["links"].values():
        assert client.get(link).status_code == 200, link


def test_server_metadata(client: httpx.Client) -> None:
    answer = client.get("/v2").json()
    assert answer["name"] == "dlcb"
    assert {"binary_tensor_data", "model_repository", "statistics"} <= set(answer["extensions"])
    for version in ("v1", "v2"):
        assert "identity" in client.get(f"/{version}/models").json()["models"]
    assert "GET / says where" in client.get("/v3").json()["error"]


def test_health(client: httpx.Client) -> None:
    for path in (
        "/v2/health/live",
        "/v2/health/ready",
        "/v2/models/identity/ready",
        "/v2/models/identity/versions/1/ready",
    ):
        assert client.get(path).status_code == 200
        asked = client.head(path)
        assert asked.status_code == 200 and asked.content == b""
    assert client.head("/v2/models/nobody/ready").status_code == 404
    assert client.get("/v2/models/nobody/ready").status_code == 404


def test_metadata_and_config(client: httpx.Client) -> None:
    mlp = client.get("/v2/models/mlp").json()
    assert mlp["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 128]}]
    assert mlp["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [-1, 128]}]
    assert mlp["versions"] == ["1"]
    config = client.get("/v2/models/mlp/config").json()
    assert config["max_batch_size"] == 32
    assert config["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": [128]}]
    assert "dynamic_batching" in config
    columns = client.get("/v2/models/columns/config").json()  # its batch axis is not the first
    assert columns["max_batch_size"] == 0 and columns["input"][0]["dims"] == [-1, -1]


def test_a_tensor_of_any_rank_says_so(client: httpx.Client) -> None:
    """The protocol has one word for a size that varies, and none for a rank that does."""
    (x,) = client.get("/v2/models/standardize").json()["inputs"]
    assert x == {"name": "x", "datatype": "FP32", "shape": [-1], "parameters": {"rank": "any"}}


def test_statistics_count(client: httpx.Client) -> None:
    def stats() -> dict[str, int]:
        (entry,) = client.get("/v2/models/mlp/versions/1/stats").json()["model_stats"]
        return {**entry, "ok": entry["inference_stats"]["success"]["count"]}

    before = stats()
    body = {"inputs": [{"name": "x", "shape": [2, 128], "datatype": "FP32", "data": [0.5] * 256}]}
    assert client.post("/v2/models/mlp/infer", json=body).status_code == 200
    after = stats()
    assert after["inference_count"] == before["inference_count"] + 2
    assert after["execution_count"] == before["execution_count"] + 1
    assert after["ok"] == before["ok"] + 1
    assert len(client.get("/v2/models/stats").json()["model_stats"]) > 5


def test_plan_runs_nothing(client: httpx.Client) -> None:
    shapes = {"shapes": {"x": [7, 128]}}
    answer = client.post("/v1/models/mlp/plan", json=shapes).json()
    assert answer["outputs"] == {"y": [7, 128]} and answer["symbols"] == {"batch": 7}
    assert (answer["tier"], answer["cached"], answer["would_compile"]) == ("dynamic", False, False)
    body = {"inputs": [{"name": "x", "shape": [7, 128], "datatype": "FP32", "data": [0.5] * 896}]}
    for _ in range(8):
        assert client.post("/v2/models/mlp/infer", json=body).status_code == 200
    answer = client.post("/v1/models/mlp/plan", json=shapes).json()
    assert answer["cached"] and answer["predicted_milliseconds"] > 0
    least, most = answer["measured_bytes"]
    assert least <= answer["input_bytes"] == 7 * 128 * 4 <= most
    far = client.post("/v1/models/mlp/plan", json={"shapes": {"x": [2 * most, 128]}}).json()
    assert far["predicted_milliseconds"] is None and far["measured_bytes"] == [least, most]
    for wrong, words in (
        ({}, '{"shapes": {"input_ids": [1, 7]}}'),
        ({"shapes": 3}, "must be a JSON object"),
        ({"shapes": {"x": [7, 5]}}, "nearest legal shape [7, 128]"),  # as of a request
        ({"shapes": {"x": [-1, 128]}}, "a non-negative integer"),
        ({"shapes": {"z": [1]}}, "unexpected input 'z'"),
    ):
        response = client.post("/v1/models/mlp/plan", json=wrong)
        assert response.status_code == 400 and list(response.json()) == ["error"], wrong
        assert words in response.json()["error"]


@pytest.mark.parametrize("shape", [[2**40, 2**40], [2**61, 2**61], [0, 2**61], [0, 2**25]])
def test_sizes_that_nothing_can_address_are_refused_in_the_same_words_and_not_waited_for(
    client: httpx.Client, shape: list[int]
) -> None:
    planned = client.post("/v1/models/heavy/plan", json={"shapes": {"x": shape}})
    entry = {"name": "x", "shape": shape, "datatype": "FP32", "data": []}
    inferred = client.post("/v2/models/heavy/infer", json={"inputs": [entry]})
    for answer in (planned, inferred):
        assert answer.status_code == 400
        assert re.search("can be addressed|holds nothing", answer.json()["error"])
    assert planned.json() == inferred.json()


def test_a_fault_of_ours_has_the_form_of_an_error() -> None:
    class Faulty(Endpoints):
        def root(self) -> dict[str, Any]:
            raise RuntimeError("with details")

    app = web_application(Faulty(None, False), Metrics(), Server(), lambda: True)  # type: ignore[arg-type]
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)

    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(transport=transport, base_url="http://dlcb") as client:
            return await client.get("/")

    answer = asyncio.run(ask())
    assert answer.status_code == 500 and list(answer.json()) == ["error"]
    assert "with details" not in answer.text


def test_a_parameter_of_load_or_unload_that_is_misspelt_means_no_version(client: httpx.Client) -> None:
    for act, key, words in (
        ("load", "versoin", "unknown parameter 'versoin', did you mean 'version'? known are 'version'"),
        ("load", "zzz", "unknown parameter 'zzz'; known are 'version'"),
        ("unload", "Version", "unknown parameter 'Version', did you mean 'version'? known are 'version', "),
    ):
        response = client.post(
            f"/v2/repository/models/mlp/{act}", json={"parameters": {key: "2"}}, headers=ADMIN
        )
        assert response.status_code == 400 and words in response.json()["error"], response.text
    assert client.get("/v2/models/mlp/ready").status_code == 200


def test_another_method_is_told_the_right_one(client: httpx.Client) -> None:
    for used, path, right in (
        ("GET", "/v1/models/mlp/plan", "POST"),
        ("POST", "/v1/models/mlp/explain", "GET"),
        ("GET", "/v2/repository/index", "POST"),
    ):
        response = client.request(used, path)
        assert (response.status_code, response.headers["allow"]) == (405, right)
        assert response.json() == {"error": f"'{path}' takes {right}, found {used}"}


def test_coverage_counts_what_has_run_just_now(client: httpx.Client) -> None:
    def plans() -> int:
        return int(client.get("/v1/models/identity/coverage").json()["counters"]["entries"])

    before = plans()
    for number in range(1, 4):
        inputs = [
            {"name": "x", "shape": [1, 700 + number], "datatype": "FP32", "data": [0.5] * (700 + number)}
        ]
        assert client.post("/v2/models/identity/infer", json={"inputs": inputs}).status_code == 200
        assert plans() == before + number


def test_shapes_that_were_compared_with_pytorch_are_counted(client: httpx.Client) -> None:
    def counted() -> list[float]:
        client.get("/v1/models/unproven/coverage")  # asks the worker; a scrape waits for nobody
        lines = dict(line.rsplit(" ", 1) for line in client.get("/metrics").text.splitlines())
        name = 'dlcb_shape_verdicts_total{model="unproven",verdict="%s"}'
        return [float(lines[name % verdict]) for verdict in ("confirmed", "refuted")]

    before = counted()
    for width in (5, 13, 6):
        inputs = [{"name": "x", "shape": [1, width], "datatype": "FP32", "data": [0.5] * width}]
        assert client.post("/v2/models/unproven/infer", json={"inputs": inputs}).status_code == 200
    assert counted() == [before[0] + 2, before[1] + 1]


def test_coverage_names_symbols_and_equalities(client: httpx.Client) -> None:
    answer = client.get("/v1/models/identity/coverage").json()
    assert answer["symbols"]["batch"]["low"] == 1 and answer["symbols"]["batch"]["high"] == 64
    assert answer["symbols"]["batch"]["axes"] == ["x[0]"]
    assert answer["batch"] == "batch"
    assert answer["values"] == {"x": {"drawn": None, "enforced": False}}
    assert client.get("/v1/models/identity/explain").json()["artifact"]


def test_metrics_parse_and_their_labels_are_bounded(client: httpx.Client) -> None:
    client.post("/v2/models/identity/infer", json=BODY)
    client.post("/v2/models/no-such-model/infer", json=BODY)
    families = {family.name: family for family in text_string_to_metric_families(client.get("/metrics").text)}
    runs = families["dlcb_shape_cache_requests"]
    assert {tuple(sorted(sample.labels)) for sample in runs.samples} == {("model", "result", "tier")}
    phases = {sample.labels["phase"] for sample in families["dlcb_request_seconds"].samples}
    assert phases == {"queue", "execute", "total"}
    models = {sample.labels["model"] for sample in families["dlcb_requests"].samples}
    assert "unknown" in models and "no-such-model" not in models
    assert families["dlcb_ready"].samples[0].value == 1
    processes = {sample.labels["process"] for sample in families["dlcb_process_resident_bytes"].samples}
    assert {"front", "worker-1", "compile"} <= processes


def test_the_openapi_document_has_the_tensor_routes(client: httpx.Client) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    for path in (
        "/v1/models/{name}/infer",
        "/v2/models/{name}/infer",
        "/v2/models/{name}/versions/{version}/infer",
    ):
        assert set(paths[path]["post"]["responses"]) >= {"200", "400", "404", "413", "429", "503", "504"}
