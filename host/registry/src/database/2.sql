-- Checksums of rows, which `rows.rs` says how to compute, and which seal the rows that are there.
ALTER TABLE tenant ADD COLUMN sum INTEGER;
ALTER TABLE key ADD COLUMN sum INTEGER;
ALTER TABLE model ADD COLUMN sum INTEGER;
ALTER TABLE version ADD COLUMN sum INTEGER;
ALTER TABLE version ADD COLUMN report_sum INTEGER;
ALTER TABLE file ADD COLUMN sum INTEGER;
-- What a file takes of the disk, which is what a tenant's bytes are counted by.
ALTER TABLE file ADD COLUMN disk_bytes INTEGER NOT NULL DEFAULT 0;
UPDATE file SET disk_bytes = (bytes + 4095) / 4096 * 4096;
ALTER TABLE earlier ADD COLUMN sum INTEGER;
ALTER TABLE numbering ADD COLUMN sum INTEGER;
