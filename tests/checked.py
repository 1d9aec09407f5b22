"""The run-time type checker of the tests: shapes and types of every annotated function, an int where a float may be."""

from beartype import BeartypeConf, beartype

typechecker = beartype(conf=BeartypeConf(is_pep484_tower=True))
