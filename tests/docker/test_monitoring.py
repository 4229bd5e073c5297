"""Prometheus' configuration, the alerts and the dashboard, checked without a server: promtool accepts them,
the
alerts fire when they must, and every metric they name is one that the server has."""

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dlcb.server.metrics import Metrics

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
DASHBOARD = json.loads((DOCKER / "grafana/dashboards/dlcb.json").read_text())
METRIC = re.compile(r"\bdlcb_[a-z_]+")


def targets() -> Iterator[dict[str, Any]]:
    for panel in DASHBOARD["panels"]:
        yield from panel["targets"]


def names_of_the_server() -> set[str]:
    """The names of the samples that the server's metrics give when scraped."""
    suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_count", "_sum"]}
    return {
        family.name + suffix for family in Metrics().collect() for suffix in suffixes.get(family.type, [""])
    }


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "config", "docker/prometheus.yml"),
        ("check", "rules", "docker/alerts.yml"),
        ("test", "rules", "tests/docker/alerts_test.yml"),
    ],
    ids=" ".join,
)
def test_promtool_agrees(arguments: tuple[str, ...], require_tool: Callable[[str], Path]) -> None:
    done = subprocess.run(
        [require_tool("promtool"), *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_tested_to_fire() -> None:
    rules = yaml.safe_load((DOCKER / "alerts.yml").read_text())["groups"][0]["rules"]
    tested = (ROOT / "tests/docker/alerts_test.yml").read_text()
    assert [rule["alert"] for rule in rules if f'alertname="{rule["alert"]}"' not in tested] == []


def test_alerts_and_dashboard_name_only_metrics_of_the_server() -> None:
    named = set(METRIC.findall((DOCKER / "alerts.yml").read_text()))
    named |= {name for target in targets() for name in METRIC.findall(target["expr"])}
    assert len(named) > 20
    assert named - names_of_the_server() == set()


def test_the_first_panel_is_shape_cache_hits() -> None:
    first = min(DASHBOARD["panels"], key=lambda panel: (panel["gridPos"]["y"], panel["gridPos"]["x"]))
    assert first is DASHBOARD["panels"][0]
    rate, ratio = (target["expr"] for target in first["targets"])
    assert "sum by (result, tier) (rate(dlcb_shape_cache_requests_total" in rate
    assert 'result="hit"' in ratio and "/" in ratio


def test_the_dashboard_shows_every_metric() -> None:
    shown = {name for target in targets() for name in METRIC.findall(target["expr"])}
    families = {re.sub(r"_(bucket|count|sum)$", "", name) for name in names_of_the_server()}
    families_shown = {re.sub(r"_(bucket|count|sum)$", "", name) for name in shown}
    assert families - families_shown == set()


def test_panels_are_laid_out_and_explained() -> None:
    identifiers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(identifiers)) == len(identifiers)
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        assert panel["description"] and panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken and place["x"] + place["w"] <= 24, panel["title"]
        taken |= cells


def test_the_dashboard_uses_the_provisioned_data_source() -> None:
    provisioned = yaml.safe_load((DOCKER / "grafana/provisioning/datasources/prometheus.yaml").read_text())
    (source,) = provisioned["datasources"]
    used = {panel["datasource"]["uid"] for panel in DASHBOARD["panels"]}
    used |= {target["datasource"]["uid"] for target in targets()}
    assert used == {source["uid"]}
