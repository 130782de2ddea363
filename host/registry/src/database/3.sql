-- Which blobs the versions of a tenant have: in how many files, and what a blob takes of the disk.
CREATE TABLE held (
    tenant INTEGER NOT NULL REFERENCES tenant (id) ON DELETE CASCADE,
    blob BLOB NOT NULL,
    files INTEGER NOT NULL,
    disk_bytes INTEGER NOT NULL,
    sum INTEGER,
    PRIMARY KEY (tenant, blob)
) STRICT, WITHOUT ROWID;
INSERT INTO held (tenant, blob, files, disk_bytes)
SELECT model.tenant, file.blob, count(*), max(file.disk_bytes)
FROM model JOIN version ON version.model = model.id JOIN file ON file.version = version.id GROUP BY model.tenant, file.blob;
-- What the versions of a tenant take: bytes of the disk, and files.
CREATE TABLE used (
    tenant INTEGER PRIMARY KEY REFERENCES tenant (id) ON DELETE CASCADE,
    bytes INTEGER NOT NULL,
    files INTEGER NOT NULL,
    sum INTEGER
) STRICT;
INSERT INTO used (tenant, bytes, files)
SELECT tenant, sum(disk_bytes + 1024 * files) + (
    SELECT coalesce(sum(octet_length(version.report)), 0)
    FROM model JOIN version ON version.model = model.id WHERE model.tenant = held.tenant
), sum(files) FROM held GROUP BY tenant;
