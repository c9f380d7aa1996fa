"""What template.yaml takes of whoever deploys it: a choice that would be ignored, or fail half an hour later, is refused at once."""

from __future__ import annotations

import re
from typing import Any

import pytest

from template import read_template

TEMPLATE = read_template()
DEFAULTS = {
    name: [""] if each["Type"] == "CommaDelimitedList" else str(each.get("Default", ""))
    for name, each in TEMPLATE["Parameters"].items()
}
SECRET = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:interlock/database-AbCdEf"
CERTIFICATE = "arn:aws:acm:eu-central-1:123456789012:certificate/1"
STREAM = {"StreamImageUri": "x", "StreamDomainName": "stream.example.com", "CertificateArn": CERTIFICATE}
SUBNETS = ["subnet-1", "subnet-2"]


def value_of(term: Any, given: dict[str, Any]) -> Any:
    """A rule's function, as CloudFormation evaluates it."""
    if not isinstance(term, dict):
        return term
    ((name, inner),) = term.items()
    if name == "Ref":
        return given[inner]
    found = [value_of(each, given) for each in inner]
    match name:
        case "Fn::Equals":
            return found[0] == found[1]
        case "Fn::Not":
            return not found[0]
        case "Fn::And":
            return all(found)
        case "Fn::Or":
            return any(found)
        case "Fn::EachMemberEquals":
            return all(each == found[1] for each in found[0])
    raise AssertionError(f"{name} is no function of rules")


def refusals(**given: Any) -> list[str]:
    """What a deployment with these parameters is told before it starts."""
    all_given = DEFAULTS | given
    return [
        assertion["AssertDescription"]
        for rule in TEMPLATE["Rules"].values()
        if value_of(rule["RuleCondition"], all_given)
        for assertion in rule["Assertions"]
        if not value_of(assertion["Assert"], all_given)
    ]


@pytest.mark.parametrize(
    "given",
    [
        {"Profile": "zero", "DatabaseSecretArn": SECRET},
        {"Profile": "zero", "DatabaseSecretArn": SECRET, "MigrationSecretArn": SECRET, "PrepareStatements": "false"},
        {"Profile": "zero", "DatabaseSecretArn": SECRET, "SubnetIds": SUBNETS, "SecurityGroupIds": ["sg-1"]},
        {"Profile": "small"},
        {"Profile": "small", **STREAM},
        {"Profile": "small", "VpcId": "vpc-1", "SubnetIds": SUBNETS},
        {"Profile": "ha", "VpcId": "vpc-1", "SubnetIds": SUBNETS, "PublicSubnetIds": SUBNETS, **STREAM},
        {"Profile": "ha", "DatabaseIam": "true"},
        {"Profile": "ha", "ApiDomainName": "tasks.example.com", "CertificateArn": CERTIFICATE},
    ],
)
def test_a_deployment_that_can_succeed_is_taken(given: dict[str, Any]) -> None:
    assert refusals(**given) == []


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"Profile": "zero"}, "DatabaseSecretArn"),
        ({"Profile": "zero", "DatabaseSecretArn": SECRET, **STREAM}, "StreamImageUri"),
        ({"Profile": "zero", "DatabaseSecretArn": SECRET, "VpcId": "vpc-1"}, "VpcId"),
        ({"Profile": "zero", "DatabaseSecretArn": SECRET, "SubnetIds": SUBNETS}, "SecurityGroupIds"),
        ({"Profile": "zero", "DatabaseSecretArn": SECRET, "SecurityGroupIds": ["sg-1"]}, "SubnetIds"),
        ({"Profile": "zero", "DatabaseSecretArn": SECRET, "DatabaseIam": "true"}, "DatabaseIam"),
        ({"Profile": "small", "DatabaseIam": "true"}, "DatabaseIam"),
        ({"Profile": "small", "DatabaseSecretArn": SECRET}, "DatabaseSecretArn"),
        ({"Profile": "ha", "MigrationSecretArn": SECRET}, "MigrationSecretArn"),
        ({"Profile": "small", "VpcId": "vpc-1"}, "SubnetIds"),
        ({"Profile": "small", "VpcId": "vpc-1", "SubnetIds": SUBNETS, **STREAM}, "PublicSubnetIds"),
        ({"Profile": "small", "SubnetIds": SUBNETS}, "VpcId"),
        ({"Profile": "small", "PublicSubnetIds": SUBNETS}, "VpcId"),
        ({"Profile": "small", "SecurityGroupIds": ["sg-1"]}, "SecurityGroupIds"),
        ({"Profile": "small", **STREAM, "CertificateArn": ""}, "CertificateArn"),
        ({"Profile": "small", **STREAM, "StreamDomainName": ""}, "StreamDomainName"),
        ({"Profile": "small", "ApiDomainName": "tasks.example.com"}, "CertificateArn"),
    ],
)
def test_a_choice_that_would_be_ignored_or_fail_late_is_refused_by_name(given: dict[str, Any], named: str) -> None:
    (told,) = refusals(**given)
    assert named in told


@pytest.mark.parametrize(
    ("rate", "taken"),
    [
        ("", True),
        ("rate(1 minute)", True),
        ("rate(59 minutes)", True),
        ("rate(1 hour)", True),
        ("rate(24 hours)", True),
        ("rate(0 minutes)", False),
        ("rate(1 minutes)", False),
        ("rate(5 minute)", False),
        ("rate(90 minutes)", False),
        ("rate(25 hours)", False),
        ("rate(1 day)", False),
        ("cron(0 * * * ? *)", False),
    ],
)
def test_a_rate_of_the_sweep_is_one_that_is_understood_everywhere(rate: str, taken: bool) -> None:
    pattern = TEMPLATE["Parameters"]["SweepRate"]["AllowedPattern"]
    assert (re.fullmatch(pattern, rate) is not None) == taken
