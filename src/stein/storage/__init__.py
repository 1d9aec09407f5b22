"""Storage: files that are complete or absent, checkpoints, and safe reading of untrusted files."""
