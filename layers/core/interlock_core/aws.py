"""The two things that a function asks of AWS itself: a secret, and a login token for its database. Signed here.

The SDK for Python would cost a cold start more than all of this service; both requests are one signature (version 4) each.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlsplit

from .settings import Platform

TIMEOUT_SECONDS = 5.0
TOKEN_SECONDS = 900
_SECRETS = "secretsmanager"
# Where a container of ECS asks for the credentials of its role.
_CONTAINER_HOST = "http://169.254.170.2"


class AwsFailed(Exception):
    """A call was refused or not answered; the text names the call and the refusal, never what was asked with."""


@dataclass(frozen=True)
class Credentials:
    """Of the role that this process runs as."""

    access_key: str
    secret_key: str
    session_token: str = ""


def find_credentials(platform: Platform) -> Credentials:
    """A function has them in its environment; a container asks for them. Raises AwsFailed where there are none."""
    if platform.access_key:
        return Credentials(platform.access_key, platform.secret_key, platform.session_token)
    if not platform.container_credentials:
        raise AwsFailed("there are no credentials: neither AWS_ACCESS_KEY_ID nor a container's")
    found = _send("GET", _CONTAINER_HOST + platform.container_credentials, {}, b"", "credentials")
    return Credentials(found["AccessKeyId"], found["SecretAccessKey"], found["Token"])


def fetch_secret(arn: str, platform: Platform) -> dict[str, Any]:
    """The current value of a secret that is a JSON object. Blocks, for some seconds at most. Raises AwsFailed."""
    region = arn.split(":")[3] if arn.count(":") >= 6 else platform.region
    suffix = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    url = (platform.endpoint or f"https://{_SECRETS}.{region}.{suffix}").rstrip("/") + "/"
    body = json.dumps({"SecretId": arn}).encode()
    headers = {"content-type": "application/x-amz-json-1.1", "x-amz-target": "secretsmanager.GetSecretValue"}
    signed = sign("POST", url, headers, body, _SECRETS, region, find_credentials(platform), datetime.now(UTC))
    answer = _send("POST", url, signed, body, "GetSecretValue")
    try:
        value = json.loads(answer["SecretString"])
    except (KeyError, ValueError):
        value = None
    if not isinstance(value, dict):
        raise AwsFailed("the secret is not a JSON object")
    return value


def make_login_token(host: str, port: int, user: str, region: str, credentials: Credentials, now: datetime) -> str:
    """The password of a database user that logs in by IAM, good for 15 minutes. No request is made."""
    stamp, scope = _scope("rds-db", region, now)
    query = {
        "Action": "connect",
        "DBUser": user,
        "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
        "X-Amz-Credential": f"{credentials.access_key}/{scope}",
        "X-Amz-Date": stamp,
        "X-Amz-Expires": str(TOKEN_SECONDS),
        "X-Amz-SignedHeaders": "host",
    }
    if credentials.session_token:
        query["X-Amz-Security-Token"] = credentials.session_token
    text = "&".join(f"{name}={quote(value, safe='-_.~')}" for name, value in sorted(query.items()))
    place = f"{host}:{port}"
    request = f"GET\n/\n{text}\nhost:{place}\n\nhost\n{hashlib.sha256(b'').hexdigest()}"
    return f"{place}/?{text}&X-Amz-Signature={_signature(request, stamp, scope, credentials)}"


def sign(
    method: str, url: str, headers: Mapping[str, str], body: bytes, service: str, region: str, by: Credentials, now: datetime
) -> dict[str, str]:
    """The headers (lower-case) with their signature; `url` has no query."""
    parts = urlsplit(url)
    stamp, scope = _scope(service, region, now)
    all_headers = {**headers, "host": parts.netloc, "x-amz-date": stamp}
    if by.session_token:
        all_headers["x-amz-security-token"] = by.session_token
    names = ";".join(sorted(all_headers))
    listed = "".join(f"{name}:{all_headers[name].strip()}\n" for name in sorted(all_headers))
    request = f"{method}\n{parts.path or '/'}\n\n{listed}\n{names}\n{hashlib.sha256(body).hexdigest()}"
    signature = _signature(request, stamp, scope, by)
    authority = f"AWS4-HMAC-SHA256 Credential={by.access_key}/{scope}, SignedHeaders={names}, Signature={signature}"
    return {**all_headers, "authorization": authority}


def _scope(service: str, region: str, now: datetime) -> tuple[str, str]:
    stamp = now.strftime("%Y%m%dT%H%M%SZ")
    return stamp, f"{stamp[:8]}/{region}/{service}/aws4_request"


def _signature(request: str, stamp: str, scope: str, by: Credentials) -> str:
    text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
    key = f"AWS4{by.secret_key}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    return hmac.digest(key, text.encode(), "sha256").hex()


def _send(method: str, url: str, headers: Mapping[str, str], body: bytes, call: str) -> dict[str, Any]:
    import http.client  # noqa: PLC0415  # with TLS behind it, half of a cold start: only who has a secret pays

    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=TIMEOUT_SECONDS)
    try:
        connection.request(method, parts.path, body or None, {name: value for name, value in headers.items() if name != "host"})
        response = connection.getresponse()
        answer = json.loads(response.read() or b"{}")
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise AwsFailed(f"{call} was not answered: {type(error).__name__}") from error
    finally:
        connection.close()
    if response.status != 200:
        refusal = answer.get("__type", "") if isinstance(answer, dict) else ""
        raise AwsFailed(f"{call} was refused: {response.status} {str(refusal).rpartition('#')[2]}")
    return answer if isinstance(answer, dict) else {}
