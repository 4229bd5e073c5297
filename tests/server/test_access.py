"""Keys, groups and rates."""

from __future__ import annotations

import pytest

from dlcb.server.access import Access, TokenBucket
from dlcb.server.errors import Forbidden, RateExceeded, Unauthorized
from dlcb.server.settings import Group, Keys

from .conftest import Start
from .test_lifecycle import CONFIG, body


@pytest.mark.parametrize(
    "headers",
    [{}, {b"x-api-key": b"wrong"}, {b"authorization": b"Basic right"}, {b"authorization": b"Bearer"}],
)
def test_a_wrong_key_is_refused(headers: dict[bytes, bytes]) -> None:
    access = Access(Keys(infer=("theirs",), admin=("right", "other")))
    with pytest.raises(Unauthorized):
        access.check_admin(headers)
    with pytest.raises(Unauthorized):
        access.check(headers, "mlp")


@pytest.mark.parametrize("headers", [{b"x-api-key": b"other"}, {b"authorization": b"bearer right"}])
def test_any_of_the_keys_will_do(headers: dict[bytes, bytes]) -> None:
    Access(Keys(admin=("right", "other"))).check_admin(headers)
    Access(Keys(infer=("right", "other"))).check(headers, "mlp")


def test_a_key_that_runs_models_does_not_load_them() -> None:
    group = Group(name="partners", keys=("partner",))
    access = Access(Keys(infer=("ours",), groups=(group,), admin=("right",)))
    for key in (b"ours", b"partner"):
        with pytest.raises(Forbidden, match="need one of the 'admin' keys"):
            access.check_admin({b"x-api-key": key})


def test_a_bucket_lets_its_rate_through() -> None:
    bucket = TokenBucket(4.0, burst=2)
    assert [bucket.take(0.0), bucket.take(0.0)] == [0, 0]
    assert bucket.take(0.0) == pytest.approx(0.25)
    assert bucket.take(0.25) == 0
    passed = sum(bucket.take(1 + step / 100) == 0 for step in range(500))
    assert passed == pytest.approx(4 * 5, abs=3)


def test_groups_have_their_models_and_their_rate() -> None:
    group = Group(name="partners", keys=("theirs",), models=("mlp",), requests_per_second=0.01, burst=2)
    access = Access(Keys(infer=("ours",), groups=(group,)))
    assert access and not Access(Keys())
    theirs = {b"x-api-key": b"theirs"}
    access.check({b"x-api-key": b"ours"}, "anything")
    with pytest.raises(Unauthorized):
        access.check({}, "mlp")
    with pytest.raises(Forbidden, match="'partners' do not run model 'identity'"):
        access.check(theirs, "identity")
    access.check(theirs, "mlp")
    access.check(theirs, "mlp")
    with pytest.raises(RateExceeded, match=r"0\.01 requests a second") as caught:
        access.check(theirs, "mlp")
    assert 90 <= caught.value.retry_after <= 100


def test_a_server_with_groups_and_a_model_with_a_rate(launch: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARTNER_KEY", "theirs")
    config = CONFIG.format(name="identity", spares=0, grace=0, arguments="{}")
    groups = "{groups: [{name: partners, keys: [env:PARTNER_KEY], requests_per_second: 0.01, burst: 3}]}"
    config = config.replace("grace_seconds: 0", f"grace_seconds: 0, keys: {groups}")
    config += "    limits: {requests_per_second: 1.5}\n"  # two at once
    path, key = "/v2/models/identity/infer", {"Authorization": "Bearer theirs"}
    with launch(config).client() as client:
        assert client.post(path, content=body(1)).status_code == 401
        answers = [client.post(path, content=body(1), headers=key) for _ in range(4)]
        assert [answer.status_code for answer in answers] == [200, 200, 429, 429]
        assert answers[2].json() == {"error": "the rate of model 'identity' is 1.5 requests a second"}
        assert answers[3].json() == {"error": "the rate of group 'partners' is 0.01 requests a second"}
        assert answers[2].headers["retry-after"] == "1" and int(answers[3].headers["retry-after"]) > 60
