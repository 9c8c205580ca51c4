"""The conformance kit: it plays a coordinator for a client, or clients for a coordinator, and reports what holds."""
