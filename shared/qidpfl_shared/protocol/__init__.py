"""The words that coordinator and clients exchange.

fields      the base of every message, and the types their fields are made of
errors      error codes, and the problem+json body that carries them
wire        flat float32 vectors, their layout and digest
tasks       `TaskSpec`: everything that defines a task
presets     ready-made tasks
messages    requests and answers of the HTTP API
"""
