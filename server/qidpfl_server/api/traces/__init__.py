"""OpenTelemetry traces of the API."""
