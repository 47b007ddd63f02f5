"""The instrument for the event loop's longest step: what it says of few quotas is told in full."""

import json

from tests.bench import loop_lag


def test_everything_is_done_and_told(tmp_path, capsys):
    file = tmp_path / "lag.json"
    loop_lag.main(["--count", "300", "--json", str(file)])
    found = json.loads(file.read_text())["found"]
    assert list(found) == [title for title, _ in loop_lag.DONE]
    assert all(figures["took_s"] > 0 <= figures["longest_step_s"] for figures in found.values())
    assert "all described" in capsys.readouterr().out
