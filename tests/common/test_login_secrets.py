"""Which secret a login offers: files that change, accounts that change before or after them, a clock by hand."""

import os
import threading
from multiprocessing import get_context

import pytest

from kafka_throttle.common import login_secrets
from kafka_throttle.common.login_secrets import (
    Password,
    PasswordFile,
    SecretHeldBack,
    SecretUnusable,
    TokenFile,
    read_secret,
)
from tests.support.timeouts import TIMEOUT_S


class Account:
    """Logs in with what a file holds. `right` is its password at the other side."""

    def __init__(self, folder):
        self.file, self.now_s, self.right = folder / "password", 0.0, "one"
        self.write("one")
        self.secret = Password(PasswordFile(str(self.file)), lambda: self.now_s)
        self.wrong = []

    def write(self, text):
        self.file.write_text(f"{text}\n")

    def log_in(self):
        """One login: whether it succeeded. Raises as `begin`."""
        attempt = self.secret.begin()
        try:
            if attempt.secret == self.right:
                attempt.accepted()
                return True
            self.wrong.append(attempt.secret)
            attempt.refused("it refuses the login: no")
            return False
        finally:
            attempt.ended()

    def pass_s(self, seconds, step_s=0.5):
        """Try to log in at each step; when that succeeded first, None if never."""
        began_s = self.now_s
        while self.now_s <= began_s + seconds:
            try:
                if self.log_in():
                    return self.now_s - began_s
            except SecretUnusable:
                pass
            self.now_s += step_s
        return None


@pytest.fixture
def account(tmp_path):
    return Account(tmp_path)


def test_each_login_offers_what_the_file_holds_then(account):
    assert account.log_in()
    account.right = "two"
    account.write("two")
    assert account.log_in()
    assert account.wrong == []


def test_a_file_that_changes_long_before_the_account_costs_two_wrong_logins(account):
    assert account.log_in()
    account.write("two")
    assert not account.log_in()
    for _ in range(100):
        assert account.log_in()
        account.now_s += 60
    account.right = "two"
    assert not account.log_in()
    assert account.log_in()
    assert account.wrong == ["two", "one"]


def test_an_account_that_changes_before_its_file_costs_three_wrong_logins_and_is_back_at_once(account):
    assert account.log_in()
    account.right = "two"
    assert account.pass_s(600) is None
    assert account.wrong == ["one"] * 3
    account.write("two")
    assert account.log_in()


def test_a_password_that_becomes_right_without_a_change_of_its_file_is_found_out(account):
    account.right = "later"
    account.write("later ")
    assert account.pass_s(600) is None
    assert account.wrong == ["later "] * 3
    account.right = "later "
    assert account.pass_s(900) <= 900
    assert len(account.wrong) == 3


def test_a_password_that_stays_wrong_is_offered_every_15_minutes(account):
    account.right = "nobody knows"
    assert account.pass_s(4 * 900) is None
    assert len(account.wrong) == 3 + 3


def test_a_password_that_is_held_back_says_why_and_when_it_is_offered_again(account):
    account.right = "two"
    assert not account.log_in()
    with pytest.raises(SecretHeldBack) as held_back:
        account.log_in()
    next_login = f"the next login is 5 s after the last one, or when {account.file} has another password"
    assert str(held_back.value) == f"it refuses the login: no (refused once; {next_login})"


def test_what_is_said_of_a_password_that_stays_wrong_changes_seldom(account):
    """Else each moment would have a line of its own in the log."""
    account.right, said = "two", []
    for _ in range(10_000):
        try:
            account.log_in()
        except SecretHeldBack as error:
            said.append(str(error))
        account.now_s += 0.5
    assert len(set(said)) == len(login_secrets.PAUSES_S) + 1


def test_a_file_that_is_just_being_written_does_not_stop_logins(account):
    assert account.log_in()
    account.write("")
    assert account.log_in()
    account.file.unlink()
    assert account.log_in()
    account.right = "two"
    assert not account.log_in()
    with pytest.raises(SecretUnusable, match="cannot be read"):
        account.log_in()
    account.write("two")
    assert account.log_in()


def test_a_file_that_was_never_right_is_named(tmp_path):
    with pytest.raises(SecretUnusable, match=r"none cannot be read: No such file"):
        PasswordFile(str(tmp_path / "none")).begin()


def test_logins_that_come_together_learn_from_the_first(account, monkeypatch):
    """So that a wrong password is not offered by each part of the process before the first has its answer."""
    monkeypatch.setattr(login_secrets, "_TURN_S", TIMEOUT_S)
    first, outcomes = account.secret.begin(), []

    def log_in():
        try:
            outcomes.append(account.log_in())
        except SecretHeldBack:
            outcomes.append("held back")

    others = [threading.Thread(target=log_in) for _ in range(5)]
    for other in others:
        other.start()
    assert outcomes == []
    first.refused("no")
    first.ended()
    for other in others:
        other.join(TIMEOUT_S)
    assert outcomes == ["held back"] * 5


def test_a_login_without_an_end_holds_up_others_only_for_a_moment(account):
    account.secret.begin()
    account.now_s += 10
    assert account.log_in()


def test_parts_of_a_process_share_what_they_know_of_one_account(tmp_path):
    (tmp_path / "password").write_text("one")
    file, same = (PasswordFile(str(tmp_path / "password"), "proxy at a:1") for _ in range(2))
    other = PasswordFile(str(tmp_path / "password"), "proxy at b:1")
    attempt = file.begin()
    attempt.refused("no")
    attempt.ended()
    with pytest.raises(SecretHeldBack):
        same.begin()
    assert other.begin().secret == "one"


def test_another_password_in_the_file_is_noticed_without_a_login(account):
    file = PasswordFile(str(account.file))
    assert not file.holds_another("one")
    account.write("two")
    assert file.holds_another("one")
    account.file.unlink()
    assert not file.holds_another("one")


def test_a_token_is_read_for_each_login_and_never_held_back(tmp_path):
    token = TokenFile(str(tmp_path / "token"))
    for text in ("a.b.c", "d.e.f" * 5_000):
        (tmp_path / "token").write_text(f" {text}\n\n")
        attempt = token.begin()
        assert attempt.secret == text
        assert not attempt.refused("no")
        attempt.ended()


def test_secrets_are_not_shown(account):
    attempt = account.secret.begin()
    assert "one" not in repr(attempt)


def test_a_pipe_that_nobody_writes_to_holds_up_no_login_and_leaves_one_thread(tmp_path, monkeypatch):
    monkeypatch.setattr(login_secrets, "_LONGEST_READ_S", 0.05)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    before = threading.active_count()
    for place in (PasswordFile(str(pipe), "of a pipe"), TokenFile(str(pipe))) * 3:
        with pytest.raises(SecretUnusable, match=r"pipe cannot be read: nothing has come within 0\.05 s"):
            place.begin()
    assert threading.active_count() == before + 1
    hanging = login_secrets._hanging[str(pipe)]
    with pipe.open("w") as writer:
        writer.write("late")
    hanging.join(TIMEOUT_S)
    threading.Thread(target=pipe.write_text, args=("in time",), daemon=True).start()
    monkeypatch.setattr(login_secrets, "_LONGEST_READ_S", TIMEOUT_S)
    assert read_secret(str(pipe)) == "in time"


def refused_logins(file, right, answers):
    """Log in until that is right or held back; put the number of wrong logins into a queue."""
    wrong = 0
    try:
        while True:
            attempt = file.begin()
            is_right = attempt.secret == right
            if is_right:
                attempt.accepted()
            else:
                wrong += 1
                attempt.refused("no")
            attempt.ended()
            if is_right:
                break
    except SecretHeldBack:
        pass
    answers.put(wrong)


@pytest.mark.parametrize(("before", "right"), [(None, "right"), ("right", "right")])
def test_all_processes_that_are_forked_from_one_offer_a_wrong_password_once(tmp_path, before, right):
    """With a password that was accepted before, all go on with that one, also those that never offered it."""
    forked, path = get_context("fork"), tmp_path / "password"
    file, answers = PasswordFile(str(path), "of workers"), forked.Queue()
    if before is not None:
        path.write_text(before)
        refused_logins(file, right, answers)
        assert answers.get(timeout=TIMEOUT_S) == 0
    path.write_text("wrong")
    workers = [forked.Process(target=refused_logins, args=(file, right, answers), daemon=True) for _ in range(4)]
    for worker in workers:
        worker.start()
    assert sorted(answers.get(timeout=TIMEOUT_S) for _ in workers) == [0, 0, 0, 1]
    for worker in workers:
        worker.join(TIMEOUT_S)
