"""From the subject of a certificate to a user: what the JDK and Kafka's own class make of each case, and what we do."""

import contextlib
import random
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_throttle.protocol.errors import ProtocolError
from kafka_throttle.protocol.identity.distinguished_names import (
    distinguished_name,
    host_names_of,
    not_after,
    subject_of,
)
from kafka_throttle.protocol.identity.java_patterns import UnsupportedPattern, java_pattern
from kafka_throttle.protocol.identity.principal_rules import InvalidPrincipalRules, NoPrincipalRule, principal_rules
from tests.support.java_program import java_program

UTF8, NUMERIC, PRINTABLE, T61, IA5, VISIBLE, GENERAL, UNIVERSAL, BMP = 12, 18, 19, 20, 22, 26, 27, 28, 30
TAGS = (UTF8, NUMERIC, PRINTABLE, T61, IA5, VISIBLE, GENERAL, UNIVERSAL, BMP)
OIDS = (
    *("2.5.4.3", "2.5.4.6", "2.5.4.7", "2.5.4.8", "2.5.4.9", "2.5.4.10", "2.5.4.11"),
    *("0.9.2342.19200300.100.1.1", "0.9.2342.19200300.100.1.25"),
    *("2.5.4.4", "2.5.4.5", "2.5.4.12", "2.5.4.42", "2.5.4.46", "1.2.840.113549.1.9.1", "2.999.1", "1.3.6.1.4.1.42"),
)


def java_says(folder, questions):
    """What the JVM returns for each list of fields; None where it throws."""
    (folder / "calls").write_text("".join("\t".join(fields) + "\n" for fields in questions))
    command = java_program("PrincipalNames", "4.3.1")
    subprocess.run([*command, folder / "calls", folder / "results"], check=True, timeout=600)
    responses = (folder / "results").read_text().splitlines()
    assert len(responses) == len(questions)
    return [None if response == "-" else bytes.fromhex(response).decode("utf-16-be") for response in responses]


def der(tag, content):
    size = len(content)
    length = bytes([size]) if size < 128 else bytes([0x82]) + size.to_bytes(2, "big")
    return bytes([tag]) + length + content


def oid(text):
    first, second, *rest = map(int, text.split("."))
    encoded = b""
    for arc in (first * 40 + second, *rest):
        groups = [arc & 0x7F]
        while arc := arc >> 7:
            groups.append(arc & 0x7F | 0x80)
        encoded += bytes(reversed(groups))
    return der(6, encoded)


def name(*parts):
    """A Name in DER; each part is a list of (number, tag, bytes)."""
    sets = (der(0x31, b"".join(der(0x30, oid(o) + der(tag, value)) for o, tag, value in part)) for part in parts)
    return der(0x30, b"".join(sets))


def cn(value, tag=UTF8):
    return name([("2.5.4.3", tag, value)])


def certificate(subject, ends=b"301231235959Z", version=True):
    """A certificate, as far as it is read."""
    ending = der(0x17 if len(ends) == 13 else 0x18, ends)
    validity = der(0x30, der(0x17, b"200101000000Z") + ending)
    head = der(0xA0, der(2, b"\2")) if version else b""
    return der(0x30, der(0x30, head + der(2, b"\x01") + der(0x30, b"") + name() + validity + subject))


# ------------------------------------------------------------ the subject


def subjects(rng):
    yield name()
    yield name([("2.5.4.6", PRINTABLE, b"DE")], [("2.5.4.10", UTF8, b"Acme, Inc.")], [("2.5.4.3", UTF8, b"etl")])
    yield name([("2.5.4.3", UTF8, b"a"), ("0.9.2342.19200300.100.1.1", UTF8, b"b")], [("2.5.4.5", PRINTABLE, b"17")])
    yield from (cn(bytes([byte])) for byte in range(128))
    yield from (cn(b"x" + bytes([byte]) + b"y") for byte in range(128))
    for text in (
        b"",
        b" ",
        b"  a  b  ",
        b"\ra\r",
        b" \r ",
        b"#a",
        b"a#",
        b" #",
        b"a\\",
        b'a,b+c=d<e>f;g"h',
        b"\0",
        b"a\0b",
    ):
        yield from (cn(text, tag) for tag in TAGS)
    for text in ("Müller", "Ж", "中文", "😀", "\u2028", "\xa0x\xa0"):
        yield cn(text.encode())
        yield cn(text.encode("utf-16-be"), BMP)
        yield cn(text.encode("latin-1", "replace"), T61)
    yield from (cn(bytes(rng.choices(range(256), k=rng.randrange(1, 12))), rng.choice((UTF8, T61))) for _ in range(800))
    broken = (
        b"\xed\xa0\x80",
        b"\xf0\x80\x80\x80",
        b"\xf4\x90\x80\x80",
        b"\xe2\x28\xa1",
        b"\xc0\xaf",
        b"\xf0\x9f\x98",
        b"\xff",
    )
    yield from (cn(b"a" + text + b"b") for text in broken)
    letters = [b"a", b"Z", b" ", b",", b"+", b"=", b"\\", b"#", "é".encode(), b"\x1f"]
    for _ in range(1000):
        yield name(
            *(
                [
                    (rng.choice(OIDS), rng.choice(TAGS), b"".join(rng.choices(letters, k=rng.randrange(6))))
                    for _ in range(rng.choice((1, 1, 1, 2, 3)))
                ]
                for _ in range(rng.randrange(1, 6))
            )
        )


def test_subjects_are_written_as_java_writes_them(tmp_path):
    cases = list(subjects(random.Random(6)))
    kafkas = java_says(tmp_path, [("dn", case.hex()) for case in cases])
    compared = [
        (case.hex(), distinguished_name(case), kafka)
        for case, kafka in zip(cases, kafkas, strict=True)
        if kafka is not None
    ]
    assert [case for case in compared if case[1] != case[2]] == []
    assert len(compared) > 1500


def test_the_subject_and_the_end_of_a_certificate_are_found():
    subject = name([("2.5.4.10", UTF8, b"Acme")], [("2.5.4.3", UTF8, b"etl")])
    for version in (True, False):
        assert subject_of(certificate(subject, version=version)) == "CN=etl,O=Acme"
    assert not_after(certificate(subject)) == 1_924_991_999
    assert not_after(certificate(subject, b"20501231235959Z")) == 2_556_143_999


@pytest.mark.parametrize("ends", [b"301331000000Z", b"3012312359Z", b"301231235959+", b"30123123595xZ"])
def test_a_time_that_does_not_exist_is_malformed(ends):
    with pytest.raises(ProtocolError):
        not_after(certificate(name(), ends))


@given(st.binary(max_size=200))
def test_bytes_that_are_no_certificate_raise_only_protocol_errors(data):
    for read in (subject_of, not_after, distinguished_name, host_names_of):
        try:
            read(data)
        except ProtocolError:
            pass


@given(st.data())
def test_a_damaged_certificate_for_hosts_raises_only_protocol_errors(data):
    names = der(0x30, der(0x82, b"a.test") + der(0x87, bytes(4)) + der(0x82, b"*.b.test"))
    extension = der(0x30, der(0x06, b"\x55\x1d\x11") + der(0x01, b"\xff") + der(0x04, names))
    other = der(0x30, der(0x06, b"\x55\x1d\x0f") + der(0x04, b"\x03\x02\x05\xa0"))
    parts = der(0x02, b"\x01") + der(0x30, b"") * 5 + der(0xA3, der(0x30, other + extension))
    whole = der(0x30, der(0x30, parts))
    assert host_names_of(whole) == ["a.test", "*.b.test"]
    damaged = bytearray(whole)
    damaged[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        host_names_of(bytes(damaged[: data.draw(st.integers(0, len(whole)))]))
    except ProtocolError:
        pass


@given(st.data())
def test_a_damaged_certificate_raises_only_protocol_errors(data):
    whole = certificate(name([("2.5.4.3", UTF8, b"etl"), ("2.999.1", BMP, b"\0a")], [("2.5.4.6", PRINTABLE, b"DE")]))
    damaged = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(damaged[: data.draw(st.integers(0, len(whole)))])
    for read in (subject_of, not_after):
        try:
            read(cut)
        except ProtocolError:
            pass


# ------------------------------------------------------------------ the rules

SUBJECT = "CN=kafka1,OU=SME,O=mycp,L=Fulton,ST=MD,C=US"
RULES = (
    "DEFAULT",
    " DEFAULT ",
    "DEFAULT, DEFAULT",
    r"RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/,DEFAULT",
    r"RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L, RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U",
    r"RULE:^CN=(\w+),.*$/$1/U",
    r"RULE:.*CN=([^,]*).*/$1/L",
    r"RULE:.*/x/",
    r"RULE:\w*?/x/",
    r"RULE:CN=(.*)/a\/b$1/",
    r"RULE:CN=([^,]+),OU=([^,]+),.*/$2\,$1/",
    r"RULE:CN=(.*?),(.*)/$1@$4@$3/",
    r"RULE:CN=(.*?),(.*)/$12-$21-$0-$00-$01/",
    r"RULE:CN=(?<who>.*?),.*/${who}!/",
    r"RULE:CN=.*/$1/",
    r"RULE:CN=.*/\$1/",
    r"RULE:CN=(.*)/$/",
    r"RULE:CN=(.*)/a$b/",
    r"RULE:CN=(.*)/$99999999999/",
    r"RULE:CN=(.*)/\\/",
    r"RULE:CN=(.*),OU=\w{3},.*/$1/L",
    r"RULE:(?i)cn=(.*?),.*/$1/",
    r"RULE:(?i:cn)=(.*?),.*/$1/",
    r"RULE:CN=(a|k.*1|b),(?:OU|O)=([A-Z]++).*/$2.$1/L",
    r"RULE:CN=(?>k.*?1),(?!X)(?=OU)(.*)(?<=US)/$1/",
    r"RULE:\ACN=(.*)\z/$1/",
    r"RULE:CN=(.*)\Z/$1/",
    r"RULE:([A-Z]{1,2}=[^,]*,?)+/$1/",
    r"RULE:(CN|OU)=\x6b.*\u0055S/$1/",
    r"RULE:CN=(.)(.).*\2.*/$1$2/",
    "RULE:CN=(.*)/$1/X",
    "RULE:CN=(.*)/$1",
    "RULE:CN=(.*)/$1/L,",
    "RULE:CN=(.*)/$1/L garbage",
    "RULE:CN=(.*)/$1/LDEFAULT",
    "RULE:CN=(/$1/,DEFAULT",
    "RULE:CN=/(.*)/$1/",
    "DEFAULTS",
    "default",
    "",
    " ",
    ",",
    ",,DEFAULT",
    "RULE:nobody/x/",
    "RULE://x/",
    "RULE:.*//",
    "\tRULE:CN=(.*)/$1/\n,\r\nDEFAULT\0",
    r"RULE:[^,]+,(.*)/$1/",
    r"RULE:[\w=,]+/all/",
    r"RULE:[A-Za-z0-9=,\-]+/all/",
    r"RULE:[a-z&&[^b]]*/x/",
    r"RULE:[a[bc]]*/x/",
    r"RULE:[]a]*/x/",
    r"RULE:\p{Lu}.*/x/",
    r"RULE:\bCN.*/x/",
    r"RULE:\QCN=\E.*/x/",
    r"RULE:(?s).*/x/",
    r"RULE:CN.*(?#x)/x/",
    r"RULE:CN{,3}.*/x/",
    r"RULE:(?P<a>.*)/x/",
)
SUBJECTS = (
    SUBJECT,
    "CN=Duke,OU=ServiceUsers,O=Org,C=US",
    "CN=duke",
    "",
    "OU=JavaSoft,O=Sun Microsystems",
    r"CN=a\,b\=c,O=x",
    "cn=Straße,O=ΑΣ",
    "ab",
    "CN=İx,O=😀",
    "CN=a\nb,O=x",
    "CN=x\r\n",
    "CN=x\u2028",
    "CN=x,O=#1\\00",
    "1.2.3=#0c01",
)


def texts(rules, subject):
    return "name", rules.encode("utf-16-be").hex(), subject.encode("utf-16-be").hex()


def ours(rules, subject):
    """The user; None where no rule applies; InvalidPrincipalRules where we do not take the rules."""
    try:
        return principal_rules(rules).name_of(subject)
    except NoPrincipalRule:
        return None
    except InvalidPrincipalRules:
        return InvalidPrincipalRules


def compare(folder, cases):
    """How many cases we refuse, how many we and Kafka name alike, and the cases that we name differently."""
    kafkas = java_says(folder, [texts(*case) for case in cases])
    responses = [(case, ours(*case), kafka) for case, kafka in zip(cases, kafkas, strict=True)]
    refused = [response for response in responses if response[1] is InvalidPrincipalRules]
    taken = [response for response in responses if response[1] is not InvalidPrincipalRules]
    return refused, taken, [response for response in taken if response[1] != response[2]]


@pytest.mark.rule("certificate")
def test_users_are_named_as_kafka_names_them(tmp_path):
    refused, taken, differing = compare(tmp_path, [(rules, subject) for rules in RULES for subject in SUBJECTS])
    assert differing == []
    assert len(taken) > 500
    assert {rules for (rules, _), _, kafka in refused if kafka is not None} <= NOT_OURS


NOT_OURS = {
    r"RULE:[a-z&&[^b]]*/x/",
    r"RULE:[a[bc]]*/x/",
    r"RULE:[]a]*/x/",
    r"RULE:\p{Lu}.*/x/",
    r"RULE:\bCN.*/x/",
    r"RULE:\QCN=\E.*/x/",
    r"RULE:(?s).*/x/",
}
"""What Java understands and we refuse."""


def random_rules(rng):
    """Patterns put together from pieces, some of which match something, and replacements likewise."""
    atoms = [
        "CN",
        "=",
        ",",
        "a",
        "b",
        ".",
        "[ab]",
        "[^,]",
        r"\w",
        "(a)",
        "(a|b)",
        "(.*?)",
        "([^,]*)",
        "(?:ab|a)",
        r"\,",
    ]
    atoms += ["(a|)", "^", "$", "(?=a)", "(?!b)", r"\1", "(?i:A)", ".*", "(.)", "[a-c]", r"\.", "()"]
    counts = ["", "", "", "", "*", "+", "?", "*?", "+?", "{2}", "{0,1}", "*+", "?+", "{1,}"]
    pattern = "".join(rng.choice(atoms) + rng.choice(counts) for _ in range(rng.randrange(1, 7)))
    if rng.random() < 0.3:
        pattern = f"({pattern}){rng.choice(counts)}"
    pieces = ["$1", "$2", "$3", "$12", "$0", "x", "-", r"\$", r"\/", "$", "$10"]
    replacement = "".join(rng.choices(pieces, k=rng.randrange(4)))
    return f"RULE:{pattern}{rng.choice(['', '.*', '.*'])}/{replacement}/{rng.choice(['', '', 'L', 'U'])}"


def test_random_rules_name_the_users_that_kafka_names(tmp_path):
    rng = random.Random(6)
    subjects = ["CN=a,O=b", "CN=ab,O=aab", "aab", "ab", "a,b", "CN=AB", "", "aa", "CN=b\n", "abab"]
    cases = [(random_rules(rng), rng.choice(subjects)) for _ in range(20_000)]
    _, taken, differing = compare(tmp_path, cases)
    assert differing == []
    assert sum(kafka is not None for _, _, kafka in taken) > 1000
    assert len(taken) > 5_000


@pytest.mark.parametrize("rules", ["RULE:a(/x/", "RULE:a/x", "RULE:a/$2/", "nonsense", r"RULE:\p{L}/x/"])
def test_rules_that_are_refused_say_why(rules):
    with pytest.raises(InvalidPrincipalRules, match=r"rule|pattern|replacement|RULE"):
        principal_rules(rules)


@given(st.text(max_size=60), st.text(max_size=30))
def test_any_rules_and_any_subject_raise_only_the_two_errors(rules, subject):
    ours(rules, subject)
    ours(f"RULE:{rules}/{subject}/", subject)
    try:
        java_pattern(rules)
    except UnsupportedPattern:
        pass


def test_a_subject_that_is_too_long_has_no_user():
    with pytest.raises(NoPrincipalRule, match="9000 characters"):
        principal_rules("DEFAULT").name_of("x" * 9000)


KAFKAS_EXAMPLE = r"RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L"


@pytest.mark.parametrize("rules", [KAFKAS_EXAMPLE, f"{KAFKAS_EXAMPLE},DEFAULT"])
@pytest.mark.parametrize("parts", [8, 50])
def test_a_subject_that_would_take_too_long_is_matched_with_no_pattern(rules, parts):
    subject = f"CN=x{parts * ',OU=a'}{parts * ',O=a'}{parts * ',L=a'}{parts * ',ST=a'}"
    with pytest.raises(NoPrincipalRule, match=f"{4 * parts + 1} parts"):
        principal_rules(rules).name_of(subject)
    with pytest.raises(NoPrincipalRule, match="2101 characters in 1 parts"):
        principal_rules(rules).name_of("CN=" + "x" * 2098)
    assert principal_rules("DEFAULT").name_of(subject) == subject
    assert principal_rules(rules).name_of("CN=Ann,OU=a,O=b,L=c,ST=d,C=DE") == "ann@a"


SLOW = ["RULE:CN=(a|aa)+/x/", r"RULE:CN=(\w|\w\w)+/x/", "RULE:CN=(a|a[a-z])+/x/", "RULE:(?:CN=|a|aa)*/x/"]


@pytest.mark.parametrize("rules", SLOW)
def test_a_pattern_that_takes_exponentially_long_is_found_and_gives_no_user(rules):
    slow = principal_rules(f"RULE:quick/x/, {rules}")
    assert list(slow.slow_rules()) == [2]
    with pytest.raises(NoPrincipalRule, match="rule 2 takes too long for the subject"):
        slow.name_of("CN=" + "a" * 60 + "\0")


def test_patterns_as_people_write_them_are_not_called_slow():
    rules = [rule for rule in RULES if "+)+" not in rule and "*)*" not in rule]
    found = {}
    for rule in rules:
        with contextlib.suppress(InvalidPrincipalRules):
            found[rule] = list(principal_rules(rule).slow_rules())
    assert [rule for rule, slow in found.items() if slow] == []
    assert len(found) > 20


def test_when_no_time_is_left_there_is_no_user_and_the_default_needs_no_time():
    spent = iter([1.0, 0.0])
    with pytest.raises(NoPrincipalRule, match="rule 1 takes too long"):
        principal_rules("RULE:^(CN=.*)$/$1/, DEFAULT").name_of("CN=a", lambda: next(spent))
    assert principal_rules("DEFAULT").name_of("CN=a", lambda: 0.0) == "CN=a"


@pytest.mark.parametrize("pattern", ["((a{1000}){1000}){1000}", "(?:ab|[cd]e){9999}", r"(\d{2,}(x, ){99,9999})"])
def test_a_pattern_that_would_fill_the_memory_is_refused(pattern):
    with pytest.raises(InvalidPrincipalRules, match="with all repetitions written out, at most 20000 are allowed"):
        principal_rules(f"RULE:{pattern}/x/")


def test_repetitions_that_stand_beside_each_other_add_up():
    hexes = "-".join(f"[0-9a-f]{{{count}}}" for count in (8, 4, 4, 4, 12))
    subject = "CN=01234567-89ab-cdef-0123-456789abcdef"
    assert principal_rules(f"RULE:CN=({hexes})/$1/").name_of(subject) == subject.removeprefix("CN=")
