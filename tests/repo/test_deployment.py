"""What template.yaml promises of a deployment: nothing stateful can be lost, nobody may more than he needs, nothing hangs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from interlock_core.http import _no_route  # noqa: F401  # the answer of the $default route
from interlock_core.migrate import hash_folder
from repo.tree import ROOT
from template import _read_rate, read_functions, read_template

TEMPLATE = read_template()
RESOURCES: dict[str, dict[str, Any]] = TEMPLATE["Resources"]
PROFILES = ("zero", "small", "ha")
FUNCTIONS = {name: each for name, each in RESOURCES.items() if each["Type"] == "AWS::Serverless::Function"}


def of_type(*types: str) -> dict[str, dict[str, Any]]:
    return {name: each for name, each in RESOURCES.items() if each["Type"] in types}


def test_what_holds_data_survives_its_stack() -> None:
    clusters = of_type("AWS::RDS::DBCluster")
    assert list(clusters) == ["DatabaseCluster"]
    for cluster in clusters.values():
        assert (cluster["DeletionPolicy"], cluster["UpdateReplacePolicy"]) == ("Snapshot", "Snapshot")
        assert cluster["Properties"]["DeletionProtection"] is True
        assert cluster["Properties"]["StorageEncrypted"] is True
        assert cluster["Properties"]["BackupRetentionPeriod"] >= 7
    for secret in of_type("AWS::SecretsManager::Secret").values():
        assert (secret["DeletionPolicy"], secret["UpdateReplacePolicy"]) == ("Retain", "Retain")
    # A kind of storage that is new here has to be thought of here.
    stateful = re.compile(r"::(DBCluster|DBInstance|Bucket|Table|Secret|Queue|FileSystem|Volume)$")
    kinds = {each["Type"] for each in RESOURCES.values() if stateful.search(each["Type"])}
    assert kinds == {"AWS::RDS::DBCluster", "AWS::RDS::DBInstance", "AWS::SecretsManager::Secret", "AWS::SQS::Queue"}


def test_every_function_comes_after_the_schema_but_the_one_that_makes_it() -> None:
    assert {name for name, function in FUNCTIONS.items() if function.get("DependsOn") != "Schema"} == {"MigrateFunction"}
    assert RESOURCES["Schema"]["Properties"]["ServiceToken"] == {"Fn::GetAtt": ["MigrateFunction", "Arn"]}
    assert RESOURCES["StreamService"]["DependsOn"][1] == "Schema"
    # A function that cannot answer (it does not start) is waited for no longer than it could have worked.
    (longest,) = (each["Properties"]["Timeout"] for name, each in FUNCTIONS.items() if name == "MigrateFunction")
    assert longest < RESOURCES["Schema"]["Properties"]["ServiceTimeout"] <= 1200


def test_the_schema_carries_the_hash_of_the_migrations() -> None:
    assert RESOURCES["Schema"]["Properties"]["Hash"] == hash_folder(ROOT / "migrations"), "run scripts/check --fix"


def test_a_function_may_read_the_one_secret_and_no_more() -> None:
    for name, function in FUNCTIONS.items():
        properties = function["Properties"]
        assert "Role" not in properties, "each has a role of its own"
        if name != "MigrateFunction":
            assert properties["Policies"] == [{"Ref": "DatabaseAccess"}], name
    documents = json.dumps([each["Properties"] for each in of_type("AWS::IAM::Role", "AWS::IAM::ManagedPolicy").values()])
    assert set(re.findall(r'"Action": "([^"]+)"', documents)) == {
        "secretsmanager:GetSecretValue",
        "rds-db:connect",
        "sts:AssumeRole",
    }
    assert '"Resource": "*"' not in documents


def test_by_iam_no_password_reaches_a_function() -> None:
    told = TEMPLATE["Globals"]["Function"]["Environment"]["Variables"]
    (statement,) = RESOURCES["DatabaseAccess"]["Properties"]["PolicyDocument"]["Statement"]
    condition, by_token, by_password = statement["Fn::If"]
    assert (condition, by_token["Action"], by_password["Action"]) == ("UseIam", "rds-db:connect", "secretsmanager:GetSecretValue")
    assert told["INTERLOCK_SERVER_DATABASE_SECRET_ARN"]["Fn::If"][:2] == ["UseIam", ""]
    condition, by_token, by_password = told["INTERLOCK_SERVER_DATABASE_URL"]["Fn::If"]
    assert (condition, by_password) == ("UseIam", "")
    (login,) = re.findall(r"//(\w+)@", by_token["Fn::Sub"])  # without a password, and whom the policy lets in
    assert json.dumps(statement).count(f'dbuser:${{Proxy}}/{login}"') == 1
    assert f'"username": "{login}"' in RESOURCES["DatabaseSecret"]["Properties"]["GenerateSecretString"]["SecretStringTemplate"]
    # The one that migrates goes past the proxy, with the password.
    own = RESOURCES["MigrateFunction"]["Properties"]["Environment"]["Variables"]
    assert (own["INTERLOCK_SERVER_DATABASE_URL"], own["INTERLOCK_SERVER_DATABASE_IAM"]) == ("", "false")


def test_every_http_function_can_be_bounded() -> None:
    http = [
        name
        for name, function in FUNCTIONS.items()
        if any(event["Type"] == "HttpApi" for event in function["Properties"].get("Events", {}).values())
    ]
    words = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
    assert f"each of the {words[len(http)]} HTTP functions" in (ROOT / "docs" / "operations.md").read_text(
        encoding="utf-8"
    ).replace("\n", " ")
    for name, function in FUNCTIONS.items():
        events = function["Properties"].get("Events", {}).values()
        if any(event["Type"] == "HttpApi" for event in events):
            assert function["Properties"]["ReservedConcurrentExecutions"]["Fn::If"][0] == "HasReserve", name


def test_scheduled_functions_end_in_the_dead_letters() -> None:
    for name in ("SweepFunction", "RetentionFunction"):
        properties = FUNCTIONS[name]["Properties"]
        failure = properties["EventInvokeConfig"]["DestinationConfig"]["OnFailure"]
        assert failure["Destination"] == {"Fn::GetAtt": ["DeadLetters", "Arn"]}
        (event,) = properties["Events"].values()
        assert event["Properties"]["RetryPolicy"]["MaximumRetryAttempts"] >= 1
        assert event["Properties"]["DeadLetterConfig"] == {"Arn": {"Fn::GetAtt": ["DeadLetters", "Arn"]}}


def test_two_stacks_of_one_account_share_no_name() -> None:
    """SAM names a schedule after its function, the same in each stack, unless it is told not to."""
    for name, function in FUNCTIONS.items():
        for event in function["Properties"].get("Events", {}).values():
            assert event["Type"] == "HttpApi" or event["Properties"].get("OmitName") is True, name
    # Of what belongs to another resource, whose name is the stack's own, or to the platform.
    within = {"DatabaseName", "TargetGroupName", "MetricName", "PolicyName"}
    for name, resource in RESOURCES.items():
        for key, value in resource["Properties"].items() if "Properties" in resource else ():
            if key.endswith(("Name", "Identifier", "Family")) and key not in within and key != "EngineFamily":
                assert isinstance(value, dict), f"{name}.{key}"


def test_log_groups_forget() -> None:
    groups = of_type("AWS::Logs::LogGroup")
    assert len(groups) == 3
    for group in groups.values():
        assert group["Properties"]["RetentionInDays"] == {"Ref": "LogRetentionDays"}


def test_streams_are_tls_only_and_outlast_their_silence() -> None:
    (listener,) = of_type("AWS::ElasticLoadBalancingV2::Listener").values()
    assert (listener["Properties"]["Protocol"], listener["Properties"]["Port"]) == ("HTTPS", 443)
    assert "AStreamNeedsTls" in TEMPLATE["Rules"]
    (balancer,) = of_type("AWS::ElasticLoadBalancingV2::LoadBalancer").values()
    attributes = {each["Key"]: each["Value"] for each in balancer["Properties"]["LoadBalancerAttributes"]}
    keep_alive = float(re.search(r"KEEP_ALIVE_SECONDS = ([\d.]+)", _stream_code())[1])  # type: ignore[index]
    assert float(attributes["idle_timeout.timeout_seconds"]) > 2 * keep_alive
    # Whoever closes first must be the balancer: it would send a call into a connection that is being closed, and answer 502.
    connections = float(re.search(r"IDLE_CONNECTION_SECONDS = ([\d.]+)", _stream_code())[1])  # type: ignore[index]
    assert connections > float(attributes["idle_timeout.timeout_seconds"])
    assert "timeout_keep_alive=IDLE_CONNECTION_SECONDS" in _stream_code()
    (targets,) = of_type("AWS::ElasticLoadBalancingV2::TargetGroup").values()
    assert targets["Properties"]["HealthCheckPath"] == "/readyz"
    delays = {each["Key"]: each["Value"] for each in targets["Properties"]["TargetGroupAttributes"]}
    assert float(delays["deregistration_delay.timeout_seconds"]) <= 30


def _stream_code() -> str:
    return "".join(path.read_text(encoding="utf-8") for path in (ROOT / "functions" / "stream").glob("*.py"))


def test_every_alarm_is_told_and_every_dimension_is_ours() -> None:
    alarms = of_type("AWS::CloudWatch::Alarm")
    assert len(alarms) >= 7
    for name, alarm in alarms.items():
        assert alarm["Condition"] in ("HasAlarms", "HasDatabaseAlarms", "HasStreamAlarms"), name
        assert alarm["Properties"]["AlarmActions"] == [{"Ref": "AlarmTopicArn"}], name
        assert alarm["Properties"]["AlarmDescription"], name


def test_an_alarm_of_the_sweeps_figures_fits_the_rate_of_the_sweep() -> None:
    """A period that holds no run says that there was none; one that needs several in a row never comes where they are rare."""
    sweep, backlog, unknown = (RESOURCES[name]["Properties"] for name in ("SweepAlarm", "BacklogAlarm", "UnknownAlarm"))
    own = {"Fn::If": ["SweepsByTheHour", 86400, 7200]}
    assert sweep["Period"] == {"Fn::If": ["HasSweepRate", own, 900]}
    slowest = max(_read_rate(each["Sweep"], {}) for each in TEMPLATE["Mappings"]["Profiles"].values())
    assert slowest * 2 < 900
    assert [each["EvaluationPeriods"] for each in (sweep, backlog, unknown)] == [1, 1, 1]


def test_the_balancer_and_its_tasks_wait_for_the_way_out() -> None:
    """A load balancer towards the internet is refused before its network has a gateway; its tasks fetch their image through it."""
    after = json.dumps(RESOURCES["StreamBalancer"]["Metadata"]["After"])
    for name in ("InternetRoute", "PublicRouteA", "PublicRouteB"):
        assert f'"Ref": "{name}"' in after
    assert RESOURCES["InternetRoute"]["DependsOn"] == "InternetAttachment"


def test_the_dashboard_is_json_of_the_services_own_metrics() -> None:
    body = RESOURCES["Dashboard"]["Properties"]["DashboardBody"]["Fn::Sub"]
    widgets = json.loads(body)["widgets"]
    assert len(widgets) >= 5
    from interlock_core.emf import FIGURES

    ours = {metric[1] for widget in widgets for metric in widget["properties"]["metrics"] if metric[0] == "Interlock"}
    told = {
        alarm["Properties"]["MetricName"]
        for alarm in of_type("AWS::CloudWatch::Alarm").values()
        if alarm["Properties"].get("Namespace") == "Interlock"
    }
    assert ours | told <= set(FIGURES)


def test_the_routes_of_the_template_are_those_of_the_document() -> None:
    document = json.loads((ROOT / "sdk" / "contract" / "openapi.json").read_text(encoding="utf-8"))

    def shape(path: str) -> str:
        return re.sub(r"\{\w+\}", "{}", path)

    described = {(method.upper(), shape(path)) for path, item in document["paths"].items() for method in item}
    routed = {(route.method, shape(route.path)) for function in read_functions() for route in function.routes}
    assert routed == described
    defaults = [
        name
        for name, function in FUNCTIONS.items()
        for event in function["Properties"].get("Events", {}).values()
        if event["Type"] == "HttpApi" and "Path" not in event["Properties"]
    ]
    assert defaults == ["ReadFunction"]


@pytest.mark.parametrize("profile", PROFILES)
def test_a_profile_is_in_the_mapping_and_in_the_pages(profile: str) -> None:
    assert set(TEMPLATE["Mappings"]["Profiles"][profile]) == {"Sweep", "SweepStay", "StreamTasks", "StreamCpu", "StreamMemory"}
    assert TEMPLATE["Parameters"]["Profile"]["AllowedValues"] == list(PROFILES)
    config = (ROOT / "samconfig.toml").read_text(encoding="utf-8")
    assert f"Profile={profile}" in config
    assert f"*{profile}*" in Path(ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")


def test_a_deployment_does_not_wait_for_what_it_did_not_make() -> None:
    after = json.dumps(RESOURCES["Schema"]["Properties"]["After"])
    for name in ("DatabaseInstance", "ProxyTargets", "SecretsEndpoint", "StorageEndpoint", "PrivateRouteA", "PrivateRouteB"):
        assert f'"Ref": "{name}"' in after
