"""The wire knows where frames begin, however TCP has cut them."""

from itertools import accumulate, pairwise

from hypothesis import given
from hypothesis import strategies as st

from tests.conservation.wire import Frame, Frames


@given(st.lists(st.tuples(st.integers(0, 70), st.binary(min_size=6, max_size=50)), max_size=12), st.data())
def test_frames_are_found_however_they_are_cut(requests, data):
    sent = [(len(rest) + 2).to_bytes(4, "big") + api.to_bytes(2, "big") + rest for api, rest in requests]
    stream = b"".join(sent)
    begins = [0, *accumulate(map(len, sent))]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)))))
    frames = Frames()
    found = []
    for begin, end in pairwise([0, *cuts, len(stream)]):
        found += [Frame(begin + at, length, api) for at, length, api in frames.begun_in(stream[begin:end])]
    expected = zip(begins, map(len, sent), (api for api, _ in requests), strict=False)
    assert found == [Frame(*frame) for frame in expected]
