"""No secret of a URL or a connection string reaches a text that others see."""

from __future__ import annotations

import pytest

from walkeeper_archive.open_store import open_store
from walkeeper_common.errors import Refused
from walkeeper_common.operator_text.hidden_secrets import shown_url, without_secrets
from walkeeper_proposer.postgres.dsn import libpq_parameters

SECRET = "S3cretPW"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (f"https://user:{SECRET}@h/b?sig={SECRET}", "https://***@h/b?***"),
        (f"https://{SECRET}@h:9/b/c#{SECRET}", "https://***@h:9/b/c#***"),
        (f"az://container/p?sv=1&sig={SECRET}%3D", "az://container/p?***"),
        (f"s3://u:p/w@{SECRET}@h/b", "s3://u:p/w@S3cretPW@h/b"),  # the path begins at the slash
        ("s3://bucket/prefix", "s3://bucket/prefix"),
        ("file:///a?b#c", "file:///a?b#c"),
        ("/a directory?", "/a directory?"),
    ],
)
def test_a_url_is_shown_without_its_secrets(url: str, shown: str) -> None:
    assert shown_url(url) == shown


@pytest.mark.parametrize(
    "given",
    [
        f"https://user:{SECRET}@h/b?x={SECRET}2&sig={SECRET}%2B",
        f"postgresql://user:{SECRET}%zzPW@h/db",
        f"postgresql://user@h/db?password={SECRET}&sslmode=x",
        f"host=h user=u password={SECRET} dbname=d",
        f"host=h password = '{SECRET} with \\' space' user=u",
        f"host=h sslpassword={SECRET} user=u",
    ],
)
def test_a_message_has_no_secret_of_what_was_given(given: str) -> None:
    said = f'invalid percent-encoded token: "{SECRET}%zzPW" in {given}'
    if "%zz" not in given:
        said = f"cannot use {given}"
    assert SECRET not in without_secrets(said, given)
    assert "cannot" in without_secrets("cannot use it", given)


@pytest.mark.parametrize(
    "dsn",
    [
        f"postgresql://user:{SECRET}%zzPW@h/db",
        f"postgresql://user:{SECRET}@h/db?nonsense=1",
        f"host=h password={SECRET} nonsense",
        f"host=h password='{SECRET}",
        f"postgresql://user@h/db?password={SECRET}%zz",
    ],
)
def test_a_dsn_that_is_refused_shows_no_password(dsn: str) -> None:
    """A bad escape in a password was printed with the password around it."""
    with pytest.raises(Refused) as refused:
        libpq_parameters(dsn)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    "url", [f"ftp://user:{SECRET}@h/b", f"memory://x?token={SECRET}", f"https://u:{SECRET}@h:bad/b"]
)
def test_an_archive_that_is_refused_shows_no_secret(url: str) -> None:
    """`--archive https://user:password@…?sig=…` was in /status, in `status` and in the log."""
    with pytest.raises(Refused) as refused:
        open_store(url)
    assert SECRET not in str(refused.value)


def test_an_archive_is_shown_without_its_secrets() -> None:
    pytest.importorskip("obstore")
    store = open_store(f"https://user:{SECRET}@127.0.0.1:1/bucket?sig={SECRET}")
    assert SECRET not in store.url
