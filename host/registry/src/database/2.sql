-- Checksums of rows, which `rows.rs` says how to compute, and which seal the rows that are there.
ALTER TABLE tenant ADD COLUMN sum INTEGER;
ALTER TABLE key ADD COLUMN sum INTEGER;
ALTER TABLE model ADD COLUMN sum INTEGER;
ALTER TABLE version ADD COLUMN sum INTEGER;
ALTER TABLE version ADD COLUMN report_sum INTEGER;
ALTER TABLE file ADD COLUMN sum INTEGER;
ALTER TABLE earlier ADD COLUMN sum INTEGER;
ALTER TABLE numbering ADD COLUMN sum INTEGER;
