"""The instrument for the admin listener with very many clients: every page is asked for, and responses are bounded."""

import json

from tests.bench import admin_listener


def test_every_page_is_asked_for_and_stays_small(tmp_path, capsys):
    file = tmp_path / "admin.json"
    admin_listener.main(["--clients", "4000", "--addresses", "400", "--open-s", "1.5", "--json", str(file)])
    measured = json.loads(file.read_text())
    titles = [title for _, title in admin_listener.PAGES]
    assert list(measured["found"]) == [*titles, admin_listener.OPEN_PAGES]
    assert all(size > 0 for size in measured["sizes"].values())
    assert measured["sizes"]["a scrape"] < 1 << 20
    assert measured["sizes"]["the status page, for the first time"] < 1 << 18
    assert "a scrape" in capsys.readouterr().out
