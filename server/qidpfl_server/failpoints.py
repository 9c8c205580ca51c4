"""The places where tests end a coordinator: see `qidpfl_shared.failpoints`."""

NAMES = (
    "enrol.before_commit",
    "enrol.after_commit",
    "profile.before_commit",
    "profile.after_commit",
    "declare.before_commit",
    "declare.after_commit",
    "upload.before_body",
    "upload.mid_body",
    "upload.blob_staged",
    "upload.before_commit",
    "upload.after_commit",
    "settle.aggregate_computed",
    "settle.model_written",
    "settle.before_commit",
    "settle.after_commit",
)
# Where a task comes to only if its admin gives it a model.
MODEL_NAMES = (
    "model.before_commit",
    "model.after_commit",
)
