"""The tables of a journal file, and the changes from each earlier version to the next one."""

VERSION = 6
LIMITS_SINCE = 3
RECEIPTS_SINCE = 5
_RECEIPTS = """
CREATE TABLE pinned_keys (
    position INTEGER PRIMARY KEY,
    task_id TEXT NOT NULL,
    key_id TEXT NOT NULL,
    public_key TEXT NOT NULL,
    UNIQUE (task_id, key_id)
);
CREATE TABLE receipts (
    task_id TEXT NOT NULL,
    kind TEXT NOT NULL,
    round_number INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    sequence INTEGER NOT NULL,
    head TEXT NOT NULL,
    body TEXT NOT NULL,
    key_id TEXT NOT NULL,
    signature TEXT NOT NULL,
    PRIMARY KEY (task_id, kind, round_number, attempt)
);
"""
SCHEMA = f"""
CREATE TABLE data_set (fingerprint TEXT NOT NULL, size INTEGER, recorded_at TEXT);
CREATE TABLE limits (position INTEGER PRIMARY KEY, recorded_at TEXT NOT NULL, lifetime_rho REAL);
CREATE TABLE memberships (
    task_id TEXT PRIMARY KEY,
    server TEXT NOT NULL,
    enrolment_key TEXT NOT NULL,
    spec TEXT NOT NULL,
    spec_digest TEXT NOT NULL,
    client_id TEXT,
    token TEXT,
    ordinal INTEGER,
    profile TEXT,
    lifetime_rho REAL,
    fingerprint TEXT,
    next_token TEXT
);
CREATE TABLE offers (
    task_id TEXT NOT NULL,
    round_number INTEGER NOT NULL,
    model_version INTEGER NOT NULL,
    model_digest TEXT NOT NULL,
    reward_micro INTEGER NOT NULL,
    total REAL NOT NULL,
    base_rho REAL,
    PRIMARY KEY (task_id, round_number)
);
CREATE TABLE entries (
    position INTEGER PRIMARY KEY,
    task_id TEXT NOT NULL,
    release TEXT NOT NULL,
    mechanism TEXT NOT NULL,
    rho REAL NOT NULL,
    proven_rho REAL,
    state TEXT NOT NULL,
    digest TEXT,
    payload BLOB,
    acknowledged INTEGER NOT NULL DEFAULT 0,
    payment_micro INTEGER,
    training_s REAL,
    UNIQUE (task_id, release)
);
{_RECEIPTS}"""
# What a client looks up in every round, and how many commits went through the log of a fleet. An earlier client of the
# same version ignores them.
INDEXES = """
CREATE TABLE IF NOT EXISTS group_commits (sequence INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS receipts_by_sequence ON receipts (task_id, sequence);
CREATE INDEX IF NOT EXISTS unfinished_entries ON entries (task_id, position) WHERE
    state = 'reserved' OR (state = 'spent' AND (acknowledged = 0 OR payment_micro IS NULL));
"""
FIRST_COMMIT = "INSERT INTO group_commits SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM group_commits);"
# The change from each earlier version to the next one.
UPGRADES = {
    1: "ALTER TABLE entries ADD COLUMN training_s REAL;",
    # The journal had one data set, and the limit of its latest task. Where that was unlimited, the next run sets one.
    2: """
ALTER TABLE data_set ADD COLUMN size INTEGER;
ALTER TABLE data_set ADD COLUMN recorded_at TEXT;
ALTER TABLE memberships ADD COLUMN fingerprint TEXT;
UPDATE memberships SET fingerprint = (SELECT fingerprint FROM data_set) WHERE profile IS NOT NULL;
CREATE TABLE limits (position INTEGER PRIMARY KEY, recorded_at TEXT NOT NULL, lifetime_rho REAL);
INSERT INTO limits (recorded_at, lifetime_rho)
    SELECT strftime('%Y-%m-%dT%H:%M:%SZ', 'now'), lifetime_rho FROM
        (SELECT lifetime_rho FROM memberships ORDER BY rowid DESC LIMIT 1) WHERE lifetime_rho IS NOT NULL;
""",
    3: "ALTER TABLE memberships ADD COLUMN next_token TEXT;",
    4: _RECEIPTS,
    5: "ALTER TABLE offers ADD COLUMN base_rho REAL;",
}
