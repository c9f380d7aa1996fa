"""The version of the service, as GET /v1/config and the OpenAPI document tell it; equal to that of the package."""

VERSION = "0.1.0"
