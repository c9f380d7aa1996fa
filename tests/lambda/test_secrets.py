"""The database's address out of Secrets Manager: read once per environment, once more after a refused password."""

from __future__ import annotations

import http.server
import json
import logging
import os
import re
import socket
import sys
import threading
import traceback
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import boto3
import httpx
import psycopg
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as BotoCredentials
from moto.server import ThreadedMotoServer
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

import guard
from gateway import make_event, read_answer
from interlock_core import aws
from interlock_core.address import Address, _url_of
from interlock_core.aws import AwsFailed, Credentials, fetch_secret, make_login_token, sign
from interlock_core.db import Database, Statement
from interlock_core.errors import Unavailable
from interlock_core.migrate import migrate
from interlock_core.settings import Platform, Settings
from support.waiting import wait_until
from template import ROOT, read_template

REGION = "eu-central-1"
ENVIRONMENT = {
    "AWS_REGION": REGION,
    "AWS_ACCESS_KEY_ID": "AKIA",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_SESSION_TOKEN": "to/ken+=",
}
TASK = {"type": "demo/hello", "schemaVersion": 1, "input": {"name": "Ada"}}
Load = Callable[..., Any]


@pytest.fixture(scope="module")
def moto_url() -> Iterator[str]:
    """Secrets Manager, on a socket."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def secrets(moto_url: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A client that makes and changes secrets; the service's own reads go to the same place."""
    for name, value in {**ENVIRONMENT, "AWS_ENDPOINT_URL_SECRETS_MANAGER": moto_url}.items():
        monkeypatch.setenv(name, value)
    return boto3.client("secretsmanager", region_name=REGION, endpoint_url=moto_url)


def make_secret(secrets: Any, value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    arn: str = secrets.create_secret(Name=f"test-{uuid.uuid4()}", SecretString=text)["ARN"]
    return arn


@pytest.fixture
def role(database_url: str) -> Iterator[Callable[[str], str]]:
    """`set_password(password)` of a role of this test's own; returns its address."""
    name = f"rotating_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(database_url, autocommit=True) as connection:
        identifier = sql.Identifier(name)
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN").format(identifier))
        connection.execute(sql.SQL("GRANT ALL ON ALL TABLES IN SCHEMA public TO {}").format(identifier))

        def set_password(password: str) -> str:
            connection.execute(sql.SQL("ALTER ROLE {} PASSWORD {}").format(identifier, sql.Literal(password)))
            connection.execute("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = %s", (name,))
            parts = conninfo_to_dict(database_url)
            return f"postgresql://{name}:{password}@{parts['host']}:{parts['port']}/{parts['dbname']}"

        yield set_password
        connection.execute("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = %s", (name,))
        connection.execute(sql.SQL("DROP OWNED BY {role}; DROP ROLE {role}").format(role=identifier))


def submit(environment: Any, key: str) -> int:
    headers = [("authorization", f"Bearer {key}"), ("content-type", "application/json")]
    event = make_event("POST", "/v1/tasks", route="POST /v1/tasks", headers=headers, body=json.dumps(TASK).encode())
    return read_answer(environment(event)).status


def test_a_secret_is_read_once_and_again_after_its_password_was_changed(
    load: Load, secrets: Any, keys: dict[str, str], role: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interlock_core.address.RENEW_SECONDS", 0.0)
    arn = make_secret(secrets, {"url": role("first")})
    monkeypatch.setenv("INTERLOCK_SERVER_DATABASE_SECRET_ARN", arn)
    environment = load("submit", "")
    assert [submit(environment, keys["task-producer"]) for _ in range(3)] == [201] * 3
    address = environment.database.address
    assert address.reads == 1
    secrets.put_secret_value(SecretId=arn, SecretString=json.dumps({"url": role("second")}))
    assert submit(environment, keys["task-producer"]) == 201
    assert address.reads == 2
    # A password that stays wrong is asked for once more at each call, and the caller is told to come back.
    role("third")
    assert submit(environment, keys["task-producer"]) == 503
    assert address.reads == 3


def test_a_secret_that_cannot_be_read_is_a_503_and_then_no_longer(
    load: Load, secrets: Any, keys: dict[str, str], database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    arn = make_secret(secrets, "no json")
    monkeypatch.setenv("INTERLOCK_SERVER_DATABASE_SECRET_ARN", arn)
    environment = load("submit", "")
    assert submit(environment, keys["task-producer"]) == 503
    secrets.put_secret_value(SecretId=arn, SecretString=json.dumps({"url": database_url}))
    assert submit(environment, keys["task-producer"]) == 201


@pytest.mark.slow
def test_a_built_function_reads_its_secret(
    open_function: Callable[..., Any], secrets: Any, moto_url: str, producer: Any, database_url: str
) -> None:
    arn = make_secret(secrets, {"url": database_url})
    settings = {"INTERLOCK_SERVER_DATABASE_SECRET_ARN": arn, "INTERLOCK_SERVER_DATABASE_URL": ""}
    function = open_function("SubmitFunction", AWS_ENDPOINT_URL_SECRETS_MANAGER=moto_url, **settings)
    for _ in range(2):
        assert producer.send(function, "POST", "/v1/tasks", TASK).status == 201


@pytest.mark.slow
def test_the_streams_process_reads_its_secret(secrets: Any, database_url: str, tmp_path: Path) -> None:
    """As its container is told: by an ARN, with the role's credentials."""
    arn = make_secret(secrets, {"url": database_url})
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    environment = {**os.environ, "INTERLOCK_SERVER_DATABASE_SECRET_ARN": arn, "INTERLOCK_SERVER_POOL_SIZE": "4"}
    line = [sys.executable, str(ROOT / "functions" / "stream" / "serve.py"), "--host", "127.0.0.1", "--port", str(port)]
    with (tmp_path / "output").open("wb") as output:
        process = guard.start(line, output=output, environment=environment)
    try:

        def ready() -> bool:
            try:
                return httpx.get(f"http://127.0.0.1:{port}/readyz").status_code == 200
            except httpx.TransportError:
                return False

        wait_until(ready, 30)
    finally:
        process.stop()


def test_a_containers_credentials_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"AccessKeyId": "A", "SecretAccessKey": "S", "Token": self.path}).encode())

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        monkeypatch.setattr(aws, "_CONTAINER_HOST", f"http://127.0.0.1:{server.server_port}")
        found = aws.find_credentials(Platform(container_credentials="/v2/credentials/one"))
        thread.join()
    assert found == Credentials("A", "S", "/v2/credentials/one")


def test_an_unknown_secret_is_refused_by_name(secrets: Any) -> None:
    platform = Platform.from_environment()
    with pytest.raises(AwsFailed, match=r"GetSecretValue was refused: 4\d\d ResourceNotFoundException"):
        fetch_secret(f"arn:aws:secretsmanager:{REGION}:123456789012:secret:none-AbCdEf", platform)
    with pytest.raises(AwsFailed, match="no credentials"):
        fetch_secret("arn:aws:secretsmanager:x:1:secret:none", Platform(region=REGION))


def test_what_rds_stores_is_an_address_too() -> None:
    stored = {
        "username": "o'hara",
        "password": "p@ss/w:rd%",
        "host": "db.example",
        "port": 5433,
        "dbname": "interlock",
        "engine": "postgres",
    }
    found = conninfo_to_dict(_url_of(stored, ""))
    assert found == {
        "user": "o'hara",
        "password": "p@ss/w:rd%",
        "host": "db.example",
        "port": "5433",
        "dbname": "interlock",
        "sslmode": "require",
    }
    assert conninfo_to_dict(_url_of(stored, "proxy.example"))["host"] == "proxy.example"
    with pytest.raises(Unavailable, match="neither a url nor a username"):
        _url_of({"password": "x"}, "")


ODD_SECRETS = [
    {"url": "postgres//owner:s3cret@host/db"},
    {"url": "mysql://owner:s3cret@host/db"},
    {"url": "postgresql://owner:s3cr%zzet@127.0.0.1:1/db"},
    {"url": " postgresql://owner:s3cret@127.0.0.1:1/db"},
    {"url": "postgresql://owner:s3cret@127.0.0.1:1/db?nope=1"},
    {"url": "postgresql://owner:s3cret@h:abc/db"},
    {"url": ""},
    {"url": None},
    {"url": 5},
    {"username": "owner", "password": "s3cret", "host": None},
    {"username": "owner", "password": None, "host": "127.0.0.1"},
    {"username": "owner", "password": "s3cret", "host": "127.0.0.1", "port": "abc"},
    {"username": "owner", "password": "s3cret", "host": "a b"},
]


@pytest.mark.parametrize("iam", [False, True])
@pytest.mark.parametrize("secret", ODD_SECRETS, ids=[str(number) for number in range(len(ODD_SECRETS))])
async def test_a_secret_that_is_no_address_is_a_503_that_shows_nothing_of_it(
    secret: dict[str, Any], iam: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    held = [secret]
    monkeypatch.setattr("interlock_core.address.fetch_secret", lambda _arn, _platform: held[0])
    settings = Settings(database_secret_arn="arn:aws:secretsmanager:x:1:secret:y", database_iam=iam)
    address = Address(settings, Platform(region=REGION, access_key="a", secret_key="b"))
    with pytest.raises(Unavailable) as told:
        await Database(address).one(Statement("one", "SELECT 1", False)())
    text = "".join(traceback.format_exception(told.value)) + caplog.text
    assert "s3cr" not in text.replace(repr(secret), "")
    with pytest.raises((Unavailable, psycopg.OperationalError)) as failed:
        migrate(address.find_now(), ROOT / "migrations")
    assert "s3cr" not in "".join(traceback.format_exception(failed.value))


async def test_an_address_that_could_not_be_read_is_asked_for_again(monkeypatch: pytest.MonkeyPatch, database_url: str) -> None:
    held = [{"url": "postgres//owner:s3cret@host/db"}]
    monkeypatch.setattr("interlock_core.address.fetch_secret", lambda _arn, _platform: held[0])
    database = Database(Address(Settings(database_secret_arn="arn:aws:secretsmanager:x:1:secret:y"), Platform()))
    with pytest.raises(Unavailable, match="no address"):
        await database.one(Statement("one", "SELECT 1", False)())
    held[0] = {"url": database_url}
    assert await database.one(Statement("one", "SELECT 1 AS one", False)()) == [(1,)]
    await database.close()


def test_an_address_of_the_sixth_protocol_and_one_of_several_hosts() -> None:
    six = _url_of({"username": "u", "password": "p", "host": "2001:db8::1", "port": 6432}, "")
    assert {name: conninfo_to_dict(six)[name] for name in ("host", "port")} == {"host": "2001:db8::1", "port": "6432"}
    several = "postgresql://u:p@one:5432,two:5433/db"
    assert Address.at(several).find_now() == several


def test_a_request_is_signed_as_the_sdk_signs_it() -> None:
    body, url = b'{"SecretId": "x"}', f"https://secretsmanager.{REGION}.amazonaws.com/"
    headers = {"content-type": "application/x-amz-json-1.1", "x-amz-target": "secretsmanager.GetSecretValue"}
    request = AWSRequest("POST", url, headers=dict(headers), data=body)
    SigV4Auth(BotoCredentials("AKIA", "secret", "to/ken+="), "secretsmanager", REGION).add_auth(request)
    now = datetime.strptime(request.headers["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    ours = sign("POST", url, headers, body, "secretsmanager", REGION, Credentials("AKIA", "secret", "to/ken+="), now)
    assert ours["authorization"] == request.headers["Authorization"]


def test_a_login_token_is_the_sdks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    theirs = boto3.client("rds", region_name=REGION).generate_db_auth_token("proxy.example", 5432, "inter lock", Region=REGION)
    found = re.search(r"X-Amz-Date=(\w+)", theirs)
    assert found is not None
    now = datetime.strptime(found[1], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    ours = make_login_token("proxy.example", 5432, "inter lock", REGION, Credentials("AKIA", "secret", "to/ken+="), now)
    assert sorted(ours.partition("?")[2].split("&")) == sorted(theirs.partition("?")[2].replace("+", "%20").split("&"))


async def test_iam_logs_in_with_a_fresh_token(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(database_url="postgresql://app:unused@proxy.example:5432/interlock?sslmode=require", database_iam=True)
    address = Address(settings, Platform.from_environment(ENVIRONMENT))
    found = conninfo_to_dict(await address.find())
    assert (found["user"], found["host"], found["dbname"]) == ("app", "proxy.example", "interlock")
    assert unquote(str(found["password"])).startswith("proxy.example:5432/?Action=connect&DBUser=app&")
    assert make_conninfo(await address.find())


async def test_iam_needs_no_secret() -> None:
    told = read_template()["Globals"]["Function"]["Environment"]["Variables"]["INTERLOCK_SERVER_DATABASE_URL"]
    url = told["Fn::If"][1]["Fn::Sub"].replace("${DatabaseProxy.Endpoint}", "proxy.example")
    address = Address(Settings(database_url=url, database_iam=True), Platform.from_environment(ENVIRONMENT))
    found = conninfo_to_dict(await address.find())
    assert (found["user"], found["host"], found["port"], found["dbname"]) == ("interlock", "proxy.example", "5432", "interlock")
    assert found["sslmode"] == "require"
    assert unquote(str(found["password"])).startswith("proxy.example:5432/?Action=connect&DBUser=interlock&")
    assert address.reads == 0
