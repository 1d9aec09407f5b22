"""A finished run outside the library: exported as one program, served over HTTP, or packed for MLflow."""
