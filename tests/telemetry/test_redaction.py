"""Redaction: every form of a secret is hidden, and ordinary lines are left as they are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.telemetry.redaction import DEPTH_MAX, HIDDEN, KnownSecrets, redact, redact_value

SECRET = "hunter2-Zq8_vXw0pLmN4kJ7sR1tY6uB3cD9eF5g"
TOKEN = f"tg_0123456789abcdef_{SECRET}"

FORMS = [
    TOKEN,
    f"a token {TOKEN}, cut",
    f"b'{TOKEN}'",
    f"https://x.test/?t={TOKEN}&b=1",
    f"xtg_0123456789abcdef_{SECRET}",
    f"Bearer {SECRET}",
    f"bearer  {SECRET}",
    f"BEARER {SECRET} and more",
    f"Bearer%20{SECRET}",
    f"Authorization: Bearer {SECRET}",
    f"authorization: {SECRET}",
    f"Authorization: Basic {SECRET}",
    f"Authorization: Digest username='u', response='{SECRET}'",
    f"Proxy-Authorization: Basic {SECRET}",
    f"{{'Authorization': 'Basic {SECRET}'}}",
    f'{{"authorization": "Basic {SECRET}"}}',
    f'"{{\\"authorization\\": \\"Basic {SECRET}\\"}}"',
    f"[(b'authorization', b'Basic {SECRET}'), (b'host', b'x')]",
    f"Cookie: a=b; tidegate_session={SECRET}; c=d",
    f"Set-Cookie: tidegate_session={SECRET}; HttpOnly",
    f"(b'cookie', b'tidegate_session={SECRET}')",
    f"tidegate_session={SECRET}",
    f"tidegate_session: '{SECRET}'",
    f"GET /enter?code={SECRET} 303",
    f"/enter?next=/&code={SECRET}&x=1",
    f"code={SECRET}",
    f"/enter%3Fcode%3D{SECRET}",
    f"password={SECRET}",
    f"host=db password='{SECRET} with space' user=u",
    f"password='a\\'{SECRET}' user=u",
    f"password='{SECRET}",
    f"password=\"a b'{SECRET}",
    f"PASSWORD: {SECRET}",
    f'{{"password": "{SECRET}"}}',
    f"{{'passwd': '{SECRET}'}}",
    f"PGPASSWORD={SECRET}",
    f"client_secret={SECRET}",
    f"api_key={SECRET}",
    f"TIDEGATE_TOKEN={SECRET}",
    f'{{"id": "1", "token": "{SECRET}"}}',
    f"?access_token={SECRET}&b=1",
    f"postgresql://user:{SECRET}@db.test:5432/tidegate",
    f"postgresql+psycopg://user:{SECRET}@db.test/tidegate",
    f"postgresql://user:p@{SECRET}@db.test/tidegate",
    f"postgresql://user:p/{SECRET}@db.test/tidegate",
    f"redis://:{SECRET}@cache.test",
    f"url='http://u:{SECRET}@x.test/', other='y'",
]


@pytest.mark.parametrize("text", FORMS)
def test_no_part_of_a_secret_is_left(text: str) -> None:
    shown = redact(f"before {text}")
    assert SECRET not in shown
    assert SECRET[-12:] not in shown
    assert HIDDEN in shown
    assert shown.startswith("before ")


@pytest.mark.parametrize(
    "text",
    [
        "serving home=/home/x url=http://127.0.0.1:8787",
        "No bearer token was given.",
        "Send the header Authorization with a bearer token",
        "the worker ended with code=137",
        "tokens_cached=5 token_id=0123456789abcdef",
        "the token is wrong: TOKEN_WRONG",
        "error_code=TOPIC_NOT_FOUND",
        "topic app.events has 3 partitions",
        "postgresql://user@db.test:5432/tidegate does not answer",
        "a decoded passage of 12 rows",
    ],
)
def test_ordinary_lines_are_left_alone(text: str) -> None:
    assert redact(text) == text


def test_what_is_public_stays_readable() -> None:
    assert redact(f"revoked {TOKEN}") == f"revoked tg_0123456789abcdef_{HIDDEN}"
    shown = redact(f"postgresql://me:{SECRET}@db.test/tidegate")
    assert shown == f"postgresql://me:{HIDDEN}@db.test/tidegate"
    shown = redact(f"GET /enter?code={SECRET}&next=/x took 3 ms")
    assert shown == f"GET /enter?code={HIDDEN}&next=/x took 3 ms"


@pytest.mark.parametrize(
    "secret", ["plain-secret-text", "with 'quotes' and \\", "ümläut & spaces/+=", 'a"b"c"d"']
)
def test_a_known_secret_is_hidden_however_it_is_written(secret: str) -> None:
    from json import dumps
    from urllib.parse import quote, quote_plus

    known = KnownSecrets()
    known.keep(secret)
    for form in (
        secret,
        repr(secret),
        dumps(secret),
        quote(secret),
        quote(secret, safe=""),
        quote_plus(secret),
    ):
        inner = form[1:-1] if form in (repr(secret), dumps(secret)) else form
        assert inner not in known.hide(f"<{form}>")


def test_a_secret_that_begins_like_another_is_hidden_whole() -> None:
    known = KnownSecrets()
    known.keep("secret-one")
    known.keep("secret-one-and-more")
    assert known.hide("x secret-one-and-more y") == f"x {HIDDEN} y"


def test_a_word_is_no_secret() -> None:
    known = KnownSecrets()
    known.keep("")
    known.keep("a")
    assert known.hide("a banana") == "a banana"


@given(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\n\r"), max_size=300))
def test_a_token_is_hidden_in_any_surroundings(text: str) -> None:
    for shown in (redact(f"{text} {TOKEN} {text}"), redact(f"{text}Bearer {SECRET}")):
        assert SECRET not in shown


@given(st.text(max_size=300))
def test_hiding_twice_changes_nothing_more_of_a_secret(text: str) -> None:
    once = redact(f"{text} password={SECRET}")
    assert SECRET not in redact(once)


def test_structures_are_redacted_by_key_and_by_content() -> None:
    shown = redact_value(
        "request",
        {
            "headers": [("host", "x"), {"Authorization": SECRET}],
            "password": SECRET,
            "url": f"postgresql://u:{SECRET}@h/d",
            "count": 3,
            "whole": None,
        },
    )
    assert SECRET not in str(shown)
    assert isinstance(shown, dict)
    assert (shown["count"], shown["whole"], shown["password"]) == (3, None, HIDDEN)


def test_a_structure_that_holds_itself_is_written_all_the_same() -> None:
    ring: dict[str, object] = {"password": SECRET}
    ring["self"] = ring
    assert SECRET not in str(redact_value("ring", ring))
    deep: object = SECRET
    for _ in range(DEPTH_MAX * 2):
        deep = {"token": deep} if isinstance(deep, str) else {"inner": deep}
    assert SECRET not in str(redact_value("deep", deep))
