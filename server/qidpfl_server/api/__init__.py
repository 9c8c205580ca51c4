"""The HTTP API: thin routes over the use cases in `service`.

app            `create_app` builds the application
context        what all routes share
auth           roles, tokens and certificates
security_headers   headers of every answer
errors         every error as problem+json
openapi, json  the OpenAPI document, strict JSON bodies
uploads        vectors in request bodies, streamed to disk
batching       requests that share one piece of work
caches         models and results kept in memory
limits, metrics   limits on requests, Prometheus metrics
fast_path      the short way of the operations of every round
document       texts and examples of the OpenAPI document, and the served pages
routes         one module per resource
"""
