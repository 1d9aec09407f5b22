"""The keys of a config, as people read about them: what they mean, and which values they allow."""

from collections.abc import Callable
from typing import Any, Literal, get_args, get_origin

import msgspec
from msgspec import Struct, inspect

from stein.runs.schema import Config


class Key(Struct, frozen=True):
    """One key, as help and errors describe it."""

    type: Any
    default: Any
    meaning: str
    literals: tuple[str, ...]
    choices: Callable[[], tuple[str, ...]] | None = None  # names in a registry, which may grow

    @property
    def options(self) -> tuple[str, ...]:
        """The names that the key allows."""
        return self.choices() if self.choices else self.literals

    @property
    def allowed(self) -> str:
        """The values that the key allows, in words."""
        if self.choices:
            return f"one of {', '.join(self.options)}"
        described: Any = inspect.type_info(self.type)  # a type and its description
        return _allowed(described.type, self.literals)


def keys(section: type[Struct]) -> dict[str, Key]:
    """The keys of a section, by name."""
    return {field.name: _key(field) for field in msgspec.structs.fields(section)}


def _key(field: msgspec.structs.FieldInfo) -> Key:
    described: Any = inspect.type_info(field.type)
    choices = (described.extra or {}).get("choices")
    return Key(field.type, field.default, described.extra_json_schema["description"], _options(field.type), choices)


def _options(kind: Any) -> tuple[str, ...]:
    """The names that a type allows, in source order (msgspec sorts them)."""
    if get_origin(kind) is Literal:
        return tuple(name for name in get_args(kind) if name)
    return tuple(name for part in get_args(kind) for name in _options(part))


def _allowed(kind: Any, options: tuple[str, ...]) -> str:
    """The values of a type, in words."""
    match kind:
        case inspect.UnionType():
            return " or ".join(_allowed(part, options) for part in kind.types)
        case inspect.LiteralType():
            return options[0] if len(options) == 1 else f"one of {', '.join(options)}"
        case inspect.BoolType():
            return "true or false"
        case inspect.StrType():
            return f"text of one line, at most {kind.max_length} characters"
        case inspect.VarTupleType():
            return f"a list of at most {kind.max_length}, each {_allowed(kind.item_type, options)}"
        case inspect.IntType():
            return f"a whole number from {kind.ge} to {kind.le:_}"
        case inspect.FloatType():
            words = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
            limits = ((word, getattr(kind, limit)) for limit, word in words.items())
            return "a number " + " and ".join(f"{word} {limit}" for word, limit in limits if limit is not None)
    raise TypeError(f"no words for {kind}")


SECTIONS: dict[str, type[Struct]] = {field.name: field.type for field in msgspec.structs.fields(Config)}


KEYS: dict[str, dict[str, Key]] = {name: keys(section) for name, section in SECTIONS.items()}
