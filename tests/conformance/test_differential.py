"""Every quota type answers random scripts as Kafka's own classes do, bit for bit, while quotas change."""

import pytest

from kafka_throttle.quotas.entities import QuotaType
from tests.conformance.client_quotas import client_script
from tests.conformance.proofs import VERSIONS, Proof, other_tags

BOTH = pytest.mark.parametrize("version", VERSIONS)
ALL = pytest.mark.parametrize("quota_type", QuotaType, ids=lambda quota_type: quota_type.name)

OTHER_WINDOWS = [(1, 1), (2, 3)]


@pytest.mark.rule("rates")
@pytest.mark.parametrize("version", [pytest.param("3.9.2", marks=pytest.mark.nightly), "4.3.1"])
@ALL
def test_ten_thousand_events_are_answered_as_by_kafka(version, quota_type, tmp_path):
    compared = Proof(quota_type, version).compare(seed=1, events=10_000, folder=tmp_path)
    assert (compared.differences, compared.reported) == (0, ())
    assert compared.throttles > 0.03 * compared.events


@BOTH
@ALL
@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_two_hundred_thousand_events_are_answered_as_by_kafka(version, quota_type, tmp_path):
    compared = Proof(quota_type, version).compare(seed=2, events=200_000, folder=tmp_path)
    assert (compared.differences, compared.reported) == (0, ())


@pytest.mark.parametrize(("samples", "window_s"), OTHER_WINDOWS)
@ALL
@pytest.mark.nightly
def test_other_windows_are_measured_as_by_kafka(samples, window_s, quota_type, tmp_path):
    for version in VERSIONS:
        compared = Proof(quota_type, version, samples, window_s).compare(seed=3, events=50_000, folder=tmp_path)
        assert (compared.differences, compared.reported) == (0, ())


@pytest.mark.parametrize("quota_type", [QuotaType.PRODUCE, QuotaType.CONTROLLER_MUTATION])
def test_but_for_what_4_3_1_forgets_clients_have_the_same_tags(quota_type, tmp_path):
    compared = Proof(quota_type, "4.3.1", forgetting=True).compare(seed=4, events=10_000, folder=tmp_path)
    assert (compared.differences, compared.reported) == (0, ())


@pytest.mark.nightly
def test_only_clients_without_a_quota_are_measured_under_other_tags_by_4_3_1(tmp_path):
    difference = other_tags("4.3.1", seed=4, events=100_000, folder=tmp_path)
    assert difference.tags > 0
    assert difference.throttled == 0


@pytest.mark.rule("levels")
def test_the_scripts_limit_clients_at_all_eight_levels():
    script = client_script(QuotaType.PRODUCE)
    for _ in script.steps(2, 40_000, anchored=True):
        pass
    assert set(script.side.bound) == {None, 1, 2, 3, 4, 5, 6, 7, 8}
