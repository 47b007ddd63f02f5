"""With `throttle.fetch: paced` a Fetch waits for room, asks for no more, and what it brings goes out."""

from struct import pack

import pytest

from kafka_throttle.proxy.relay.actions import CloseReason, RelayLimits
from kafka_throttle.proxy.side import Side
from kafka_throttle.quotas.entities import Entity, QuotaType
from kafka_throttle.quotas.quota_table import QuotaTable
from tests.relay.frames import fetch, fetched, frame, heartbeat, heartbeaten
from tests.relay.script import NOW_MS, Script, quota_manager_with
from tests.relay.test_share_fetch import share_fetch, share_fetched
from tests.relay.test_withheld_fetches import empty, versioned_fetch, versioned_response

LIMIT = 100
BURST = LIMIT
"""What may come at once: what the quota allows in a second."""
ONE_BATCH = 1
"""What a Fetch asks for behind one that brought all that it had asked for, to learn how large a batch is."""
SESSION = 77


@pytest.fixture
def quota_manager():
    return quota_manager_with(fetch=LIMIT)


def paced(make_relay, quota_manager, **how):
    return Script(make_relay, quota_manager, RelayLimits(**how)).connected()


def charged_bytes(quota_manager, now_ms=NOW_MS):
    [total] = [reading.total for _, reading in quota_manager.readings(now_ms)]
    return total


# ------------------------------------------------------------------- one connection


@pytest.mark.rule("fetch")
def test_a_fetch_asks_for_what_is_left_and_what_comes_is_delivered(make_relay, quota_manager):
    script = paced(make_relay, quota_manager)
    assert script.client(fetch(1, max_bytes=5000, min_bytes=2000)) == fetch(1, max_bytes=BURST, min_bytes=BURST)
    assert script.node(fetched(1, size=70)) == fetched(1, size=70)
    assert script.client(fetch(2)) == fetch(2, max_bytes=ONE_BATCH)
    assert charged_bytes(quota_manager) == 70


def test_without_room_the_response_says_how_long_the_next_fetch_waits_and_mutes(make_relay, quota_manager):
    script = paced(make_relay, quota_manager)
    script.client(fetch(1))
    told = fetched(1, size=500, throttle_time_ms=4200)
    assert script.node(fetched(1, size=500)[:30]) == told[:30]
    assert script.node(fetched(1, size=500)[30:]) == told[30:]
    assert [(each.quota_type, each.throttle_time_ms) for each in script.throttles] == [(QuotaType.FETCH, 4200)]
    assert script.client(fetch(2) + heartbeat(3)) == b""
    assert script.time(NOW_MS + 4199) == b""
    assert script.time(NOW_MS + 4200) == fetch(2, max_bytes=ONE_BATCH)
    assert charged_bytes(quota_manager) == 500


def test_fetches_that_are_sent_ahead_pass_one_by_one(make_relay):
    script = paced(make_relay, quota_manager_with(fetch=10_000))
    first, second = fetch(1, max_bytes=500), fetch(2, max_bytes=500)
    assert script.client(first + second + heartbeat(3)) == first
    script.node(fetched(1, size=500))
    second = fetch(2, max_bytes=ONE_BATCH)
    assert script.sent[Side.NODE].endswith(first + second)
    script.node(fetched(2, size=400))
    assert script.sent[Side.NODE].endswith(second + heartbeat(3))


def test_a_client_that_does_not_wait_is_held_up_and_hears_nothing_wrong(make_relay, quota_manager):
    script = paced(make_relay, quota_manager)
    script.client(fetch(1))
    script.node(fetched(1, size=150))
    assert script.client(fetch(2)) == b""
    assert script.time(NOW_MS + 700) == fetch(2, max_bytes=ONE_BATCH)
    assert script.node(fetched(2, size=20), NOW_MS + 700) == fetched(2, size=20, throttle_time_ms=200)


@pytest.mark.parametrize("max_bytes", [0, -1, -(2**31)])
def test_a_fetch_that_asks_for_nothing_is_sent_as_it_is(make_relay, quota_manager, max_bytes):
    script = paced(make_relay, quota_manager)
    asked = fetch(1, max_bytes=max_bytes, min_bytes=max_bytes)
    assert script.client(asked) == asked
    assert script.node(fetched(1, size=500)) == fetched(1, size=500, throttle_time_ms=4200)
    assert script.client(fetch(2, max_bytes=max_bytes)) == b""


def test_a_shared_fetch_is_paced_too(make_relay, quota_manager):
    script = paced(make_relay, quota_manager)
    assert script.client(share_fetch(max_bytes=900)) == share_fetch(max_bytes=BURST)
    assert script.node(share_fetched(size=501)) == share_fetched(size=501, throttle_time_ms=4200)
    assert script.client(share_fetch(max_bytes=900)) == b""
    assert script.time(NOW_MS + 4200) == share_fetch(max_bytes=ONE_BATCH)


def test_where_responses_are_delayed_the_one_over_quota_is_late_and_the_next_fetch_goes_at_once(
    make_relay, quota_manager
):
    script = paced(make_relay, quota_manager, delays=True)
    script.client(fetch(1))
    assert script.node(fetched(1, size=500)) == b""
    script.time(NOW_MS + 4200)
    assert script.sent[Side.CLIENT] == fetched(1, size=500)
    assert script.client(fetch(2), NOW_MS + 4200) == fetch(2, max_bytes=ONE_BATCH)


def test_the_node_is_read_again_if_its_client_sends_more_just_when_a_delayed_response_of_the_proxy_is_due(
    make_relay, quota_manager
):
    script = paced(make_relay, quota_manager, delays=True)
    script.client(fetch(1))
    script.node(fetched(1, size=900))
    script.time(NOW_MS + 5000)
    script.client(heartbeat(2) + versioned_fetch(12, epoch=-1, corr=3), NOW_MS + 5000)
    script.node(heartbeaten(2), NOW_MS + 5000)
    assert not script.reads[Side.NODE]
    script.client(heartbeat(4), NOW_MS + 8200)
    assert script.sent[Side.CLIENT].endswith(empty(12, 3, throttle_ms=0))
    assert script.reads[Side.NODE]


# -------------------------------------------------------------- several connections


def test_connections_together_ask_for_no_more_than_one(make_relay, quota_manager):
    scripts = [paced(make_relay, quota_manager) for _ in range(3)]
    assert [script.client(fetch(1)) for script in scripts] == [fetch(1, max_bytes=BURST), b"", b""]
    assert scripts[0].node(fetched(1, size=40)) == fetched(1, size=40)
    assert scripts[1].time(scripts[1].wake_at) == fetch(1, max_bytes=(BURST - 40 + 20) // 3)
    assert [each.quota_type for script in scripts for each in script.throttles] == [QuotaType.FETCH] * 2


def test_room_that_is_reserved_and_not_used_is_given_back(make_relay):
    quota_manager = quota_manager_with(fetch=10_000)
    busy, idle = (paced(make_relay, quota_manager) for _ in range(2))
    idle.client(fetch(1))
    idle.node(fetched(1, size=20))
    idle.client(fetch(2))
    assert busy.client(fetch(1)) == fetch(1, max_bytes=(10_000 - 20 - 4 * 20) // 2)


def test_a_connection_that_ends_while_it_waits_leaves_nothing_behind(make_relay, quota_manager):
    first, waits = (paced(make_relay, quota_manager) for _ in range(2))
    first.client(fetch(1))
    waits.client(fetch(1))
    waits.do(waits.relay.on_lost(CloseReason.CLIENT_LOST))
    first.node(fetched(1, size=20))
    assert first.client(fetch(2)) == fetch(2, max_bytes=BURST - 20)
    first.node(fetched(2, size=20))
    first.do(first.relay.on_lost(CloseReason.CLIENT_LOST))
    assert len(quota_manager.fetch_rooms) == 0


def test_a_fetch_is_not_sent_if_its_client_leaves_while_it_waits_for_room(make_relay, quota_manager):
    other, script = (paced(make_relay, quota_manager) for _ in range(2))
    other.client(fetch(1))
    assert script.client(fetch(1)) == b""
    script.do(script.relay.on_eof(Side.CLIENT, NOW_MS * 1000))
    other.node(fetched(1, size=20))
    assert script.time(script.wake_at) == b""
    assert script.closed.reason is CloseReason.CLIENT_CLOSED


def test_a_client_that_comes_back_waits_for_its_debt(make_relay, quota_manager):
    script = paced(make_relay, quota_manager)
    script.client(fetch(1))
    script.node(fetched(1, size=1200))
    script.do(script.relay.on_lost(CloseReason.CLIENT_LOST))
    again = paced(make_relay, quota_manager)
    assert again.client(fetch(1)) == b""
    assert again.wake_at == NOW_MS + 2000
    assert again.time(NOW_MS + 2000) == fetch(1, max_bytes=LIMIT // 5)


def test_a_fetch_under_another_name_pays_nothing_for_the_first(make_relay, quota_manager):
    table = QuotaTable({Entity(client_id=name): {QuotaType.FETCH: 100.0} for name in ("etl", "decoy")})
    quota_manager.replace(table, NOW_MS)
    script = paced(make_relay, quota_manager)
    script.client(fetch(1))
    script.node(fetched(1, size=1200))
    script.do(script.relay.on_lost(CloseReason.CLIENT_LOST))
    again = paced(make_relay, quota_manager)
    decoy = fetch(1, max_bytes=BURST, client_id=b"decoy")
    assert again.client(decoy) == decoy
    again.node(fetched(1, size=50))
    assert again.client(fetch(2)) == b""
    assert again.throttles


# ------------------------------------------------------------------- for too long


def kept_waiting(make_relay, quota_manager, ask):
    """A connection whose Fetch has waited for 5 s without room, with a heartbeat behind it, and what it heard then."""
    script = paced(make_relay, quota_manager)
    script.client(fetch(1))
    script.node(fetched(1, size=900))
    heard = len(script.sent[Side.CLIENT])
    assert script.client(ask + heartbeat(3)) == b""
    assert script.time(NOW_MS + 4999) == b""
    script.time(NOW_MS + 5000)
    return script, bytes(script.sent[Side.CLIENT][heard:])


@pytest.mark.parametrize("version", [0, 1, 4, 7, 11, 12, 15, 17])
def test_a_fetch_that_waits_for_too_long_gets_an_empty_response_and_the_node_nothing(
    make_relay, quota_manager, version
):
    ask = versioned_fetch(version, epoch=0 if version < 7 else -1, corr=2)
    script, heard = kept_waiting(make_relay, quota_manager, ask)
    assert heard == empty(version, 2, throttle_ms=3200)
    assert charged_bytes(quota_manager) == 900
    script.time(NOW_MS + 8200)
    assert script.sent[Side.NODE].endswith(heartbeat(3)), "what comes behind it is taken after another wait"


@pytest.mark.parametrize("version", [7, 11, 12, 17])
def test_one_that_continues_a_session_has_its_client_open_a_new_one(make_relay, quota_manager, version):
    ask = versioned_fetch(version, epoch=4, session_id=SESSION, corr=2)
    _, heard = kept_waiting(make_relay, quota_manager, ask)
    assert heard == empty(version, 2, throttle_ms=3200, error=71)


def test_the_session_that_its_client_gives_up_is_closed_by_the_next_full_fetch(make_relay, quota_manager):
    script, _ = kept_waiting(make_relay, quota_manager, versioned_fetch(12, epoch=0, session_id=SESSION, corr=2))
    script.time(NOW_MS + 8200)
    script.node(heartbeaten(3), NOW_MS + 8200)
    sent = script.client(versioned_fetch(12, epoch=0, corr=4), NOW_MS + 60_000)
    assert sent == clamped(versioned_fetch(12, epoch=0, session_id=SESSION, corr=4), ONE_BATCH)


def test_a_fetch_that_is_too_short_to_name_a_session_closes_none(make_relay, quota_manager):
    script, _ = kept_waiting(make_relay, quota_manager, versioned_fetch(12, epoch=0, session_id=SESSION, corr=2))
    script.time(NOW_MS + 8200)
    script.node(heartbeaten(3), NOW_MS + 8200)
    short = frame(versioned_fetch(12, epoch=0, corr=4)[4:-28])
    assert script.client(short, NOW_MS + 60_000) == clamped(short, ONE_BATCH)
    assert script.closed is None


def clamped(sent, max_bytes):
    return sent.replace(pack(">i", 1000), pack(">i", max_bytes))


def test_it_is_put_together_first_if_it_came_in_pieces(make_relay, quota_manager):
    script = paced(make_relay, quota_manager)
    script.client(fetch(1))
    script.node(fetched(1, size=900))
    heard = len(script.sent[Side.CLIENT])
    ask = versioned_fetch(12, epoch=-1, corr=2)
    script.client(ask[:60])
    script.time(NOW_MS + 5000)
    assert len(script.sent[Side.CLIENT]) == heard
    script.client(ask[60:], NOW_MS + 5001)
    assert script.sent[Side.CLIENT][heard:] == empty(12, 2, throttle_ms=3199)


def test_a_shared_fetch_that_waits_for_too_long_is_sent(make_relay, quota_manager):
    script = paced(make_relay, quota_manager)
    script.client(share_fetch())
    script.node(share_fetched(size=901))
    assert script.client(share_fetch(max_bytes=900)) == b""
    assert script.time(NOW_MS + 5000) == share_fetch(max_bytes=1)


def test_it_keeps_its_turn(make_relay, quota_manager):
    script, _ = kept_waiting(make_relay, quota_manager, versioned_fetch(12, epoch=-1, corr=2))
    late = paced(make_relay, quota_manager)
    assert late.client(fetch(1), NOW_MS + 5000) == b""
    script.time(NOW_MS + 8200)
    script.node(heartbeaten(3), NOW_MS + 8200)
    assert script.client(fetch(4), NOW_MS + 8200) == fetch(4, max_bytes=ONE_BATCH)
    assert late.wake_at > NOW_MS + 8200


def test_a_response_to_a_session_of_the_node_goes_out_with_it(make_relay, quota_manager):
    script = paced(make_relay, quota_manager)
    script.client(versioned_fetch(12, epoch=0))
    response = versioned_response(12, size=70, session_id=SESSION)
    assert script.node(response) == response


def test_one_that_the_proxy_answers_is_not_waited_for_when_its_client_leaves(make_relay, quota_manager):
    script = paced(make_relay, quota_manager, delays=True)
    script.client(fetch(1))
    script.node(fetched(1, size=900))
    script.client(fetch(2))
    script.time(NOW_MS + 5000)
    script.do(script.relay.on_lost(CloseReason.CLIENT_LOST))
    assert not script.relay.unsettled
    assert len(quota_manager.fetch_rooms) == 0


def test_where_little_of_a_batch_could_come_it_is_asked_for_one_by_one_and_small_ones_together(make_relay):
    for batch_bytes, asked in ((60_000, ONE_BATCH), (400, 1_000_000)):
        script = paced(make_relay, quota_manager_with(fetch=1_000_000))
        script.client(fetch(1))
        script.node(fetched(1, size=1_000_000))
        script.client(fetch(2))
        at_ms = script.wake_at
        script.time(at_ms)
        script.node(fetched(2, size=batch_bytes), at_ms)
        script.time(at_ms + 60_000)
        assert script.client(fetch(3), at_ms + 60_000) == fetch(3, max_bytes=asked)
