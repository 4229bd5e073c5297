"""The report: differences of the server's counters, and results that say where they were measured."""

from pathlib import Path

import orjson

from dlcb.loadtest import report


def sample(name: str, value: float, **labels: str) -> dict:
    return {(name, tuple(sorted(labels.items()))): value}


def test_shape_cache_counts_only_what_grew() -> None:
    name = "dlcb_shape_cache_requests_total"
    before = sample(name, 10, model="m", tier="dynamic", result="hit")
    after = {
        **sample(name, 40, model="m", tier="dynamic", result="hit"),
        **sample(name, 5, model="m", tier="jit", result="hit"),
        **sample(name, 5, model="m", tier="dynamic", result="miss"),
        **sample(name, 99, model="other", tier="dynamic", result="miss"),
        **sample("dlcb_compile_seconds_count", 1, model="m", tier="dynamic", reason="load"),
    }
    assert report.shape_cache(before, after, "m") == {
        "hits": 35,
        "misses": 5,
        "hit_rate": 0.875,
        "by_pytorch": 0,
        "compiles_by_request": 0,
    }
    assert report.shape_cache(after, after, "m")["hit_rate"] is None


def test_results_carry_machine_versions_and_commit(tmp_path: Path) -> None:
    place = report.place()
    written = report.write(tmp_path / "new", "run", {"place": place, "scenarios": []})
    read = orjson.loads(written.read_bytes())["place"]
    assert read["machine"]["cores"] >= 1 and read["machine"]["processor"]
    assert read["versions"]["torch"].startswith("2.") and read["versions"]["dlcb"]
    assert set(read) == {"date", "commit", "machine", "versions"}
