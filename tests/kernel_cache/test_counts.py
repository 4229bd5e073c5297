import threading
from pathlib import Path

from dlcb.kernel_cache.counts import Counts, Totals


def test_totals_add_up_and_outlive_their_object(tmp_path: Path) -> None:
    assert Counts(tmp_path / "counts").add(hits=2, bytes=10) == Totals(hits=2, bytes=10)
    assert Counts(tmp_path / "counts").add(hits=1, corrupt=1) == Totals(hits=3, bytes=10, corrupt=1)
    assert Counts(tmp_path / "counts").set_bytes(4).bytes == 4
    assert Counts(tmp_path / "counts").read() == Totals(hits=3, bytes=4, corrupt=1)


def test_a_total_stops_at_zero(tmp_path: Path) -> None:
    assert Counts(tmp_path / "counts").add(bytes=-5).bytes == 0


def test_a_foreign_file_counts_as_nothing_and_is_replaced(tmp_path: Path) -> None:
    for content in (b"", b"x", b"x" * 56, b"dlcbcnt1", b"dlcbcnt1" + b"\xff" * 49):
        (tmp_path / "counts").write_bytes(content)
        assert Counts(tmp_path / "counts").add(hits=1) == Totals(hits=1)
        assert Counts(tmp_path / "counts").add(hits=1) == Totals(hits=2)


def test_what_cannot_be_written_costs_only_the_numbers(tmp_path: Path) -> None:
    assert Counts(tmp_path / "missing" / "counts").add(hits=1) == Totals(hits=1)
    assert Counts(tmp_path).read() == Totals()


def test_no_event_of_many_threads_is_lost(tmp_path: Path) -> None:
    counts = Counts(tmp_path / "counts")
    threads = [
        threading.Thread(target=lambda: [counts.add(hits=1, bytes=3) for _ in range(100)]) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts.read() == Totals(hits=800, bytes=2400)
