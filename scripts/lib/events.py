"""Events that no HTTP request makes: EventBridge Scheduler's, and CloudFormation's for a custom resource."""

from __future__ import annotations

import time
import uuid
from typing import Any

ACCOUNT, REGION = "000000000000", "us-east-1"
STACK = f"arn:aws:cloudformation:{REGION}:{ACCOUNT}:stack/interlock/00000000-0000-0000-0000-000000000000"


def make_scheduled_event(schedule: str) -> dict[str, Any]:
    """What a `ScheduleV2` event without an input of its own sends. `detail` is text, as the scheduler sends it."""
    return {
        "version": "0",
        "id": str(uuid.uuid4()),
        "detail-type": "Scheduled Event",
        "source": "aws.scheduler",
        "account": ACCOUNT,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "region": REGION,
        "resources": [f"arn:aws:scheduler:{REGION}:{ACCOUNT}:schedule/default/{schedule}"],
        "detail": "{}",
    }


def make_resource_event(request_type: str, response_url: str, properties: dict[str, str], **fields: Any) -> dict[str, Any]:
    """What CloudFormation sends to a custom resource's function: `Create`, `Update` or `Delete`.

    An update says what was (`OldResourceProperties`), and it and a deletion name the resource (`PhysicalResourceId`); a
    roll-back is an `Update` back to the old properties. All values of `properties` arrive as text.
    """
    function = "arn:aws:lambda:us-east-1:000000000000:function:migrate"
    return {
        "RequestType": request_type,
        "ServiceToken": function,
        "ResponseURL": response_url,
        "StackId": STACK,
        "RequestId": str(uuid.uuid4()),
        "LogicalResourceId": "Schema",
        "ResourceType": "Custom::Schema",
        "ResourceProperties": {"ServiceToken": function, **properties},
        **fields,
    }
