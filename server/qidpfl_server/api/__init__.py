"""The HTTP API: thin routes over the use cases.

app         `create_app`: everything joined
context     what every route has at hand
auth        roles and tokens
problems    every error as problem+json
announcements  long polls, woken from one cached board per task
uploads     bodies of updates, streamed to disk
limits      how many requests at once
admin, participants, reading, operations   the routes
"""
