"""The rows of the performance page, one small file for each or for some that belong together."""
