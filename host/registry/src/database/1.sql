-- A number in `id` is never given twice (AUTOINCREMENT), so that what was read in one transaction cannot mean something else in the next.
-- Times are milliseconds since 1970; hashes are their 32 bytes.

CREATE TABLE tenant (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    settings TEXT NOT NULL,
    -- Versions of a name that is not in `numbering` count from the next number.
    number_floor INTEGER NOT NULL DEFAULT 0,
    created_ms INTEGER NOT NULL
) STRICT;

CREATE TABLE key (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    tenant INTEGER NOT NULL REFERENCES tenant (id) ON DELETE CASCADE,
    secret_hash BLOB NOT NULL,
    scopes INTEGER NOT NULL,
    label TEXT NOT NULL,
    created_ms INTEGER NOT NULL
) STRICT;
CREATE INDEX key_of_tenant ON key (tenant);

CREATE TABLE model (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant INTEGER NOT NULL REFERENCES tenant (id),
    name TEXT NOT NULL,
    active INTEGER REFERENCES version (id),
    loaded INTEGER NOT NULL DEFAULT 1,
    created_ms INTEGER NOT NULL,
    UNIQUE (tenant, name)
) STRICT;
CREATE INDEX model_with_active ON model (active);

CREATE TABLE version (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    model INTEGER NOT NULL REFERENCES model (id) ON DELETE CASCADE,
    number INTEGER NOT NULL,
    digest BLOB NOT NULL,
    bytes INTEGER NOT NULL,
    report TEXT NOT NULL,
    created_ms INTEGER NOT NULL,
    UNIQUE (model, number),
    UNIQUE (model, digest)
) STRICT;

CREATE TABLE file (
    version INTEGER NOT NULL REFERENCES version (id) ON DELETE CASCADE,
    path TEXT NOT NULL,
    blob BLOB NOT NULL,
    bytes INTEGER NOT NULL,
    PRIMARY KEY (version, path)
) STRICT, WITHOUT ROWID;
CREATE INDEX file_with_blob ON file (blob);

-- Versions that were active before the one that is, latest last.
CREATE TABLE earlier (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    model INTEGER NOT NULL REFERENCES model (id) ON DELETE CASCADE,
    version INTEGER NOT NULL REFERENCES version (id) ON DELETE CASCADE
) STRICT;
CREATE INDEX earlier_of_model ON earlier (model);
CREATE INDEX earlier_with_version ON earlier (version);

-- The last version number given under a name; outlives the model.
CREATE TABLE numbering (
    tenant INTEGER NOT NULL REFERENCES tenant (id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    last INTEGER NOT NULL,
    -- Counts the tenant's deletions of models up; NULL while there is a model of the name.
    deletion INTEGER,
    PRIMARY KEY (tenant, name)
) STRICT, WITHOUT ROWID;
