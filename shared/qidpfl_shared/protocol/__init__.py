"""The messages and files that server and clients exchange.

fields           the base of every message, and the types of its fields
errors           error codes, and the problem+json body that carries them
wire             flat float32 vectors, their layout and digest
compatibility    the version of the protocol, requirements and digest of a spec
task_spec        `TaskSpec`: everything that defines a task
mechanism_specs  the privacy mechanism of a task
layouts          the facts of built-in data sets and networks
presets          ready-made tasks
messages         requests and answers of the HTTP API
releases         the names and guarantees of releases in ledgers
"""
