"""What a compiled program sends between devices, read from its text."""

import math
import re

_BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "f32": 4, "s64": 8, "u64": 8, "f64": 8}
_KINDS = "all-to-all|all-reduce|all-gather|reduce-scatter|collective-permute"


def sent(text: str) -> dict[str, list[tuple[int, int]]]:
    """By kind of collective: the bytes of its result on one device, and how often it runs, for each in the program."""
    bodies: dict[str, list[str]] = {}
    for line in text.splitlines():
        if opening := re.match(r"(?:ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{$", line):
            lines = bodies.setdefault(opening[1], [])
        elif bodies:
            lines.append(line)
    times = dict.fromkeys(bodies, 1)
    calls = {}
    for name, lines in bodies.items():
        for line in lines:
            for body in re.findall(r"(?:body|to_apply|calls|true_computation|false_computation)=%?([\w.\-]+)", line):
                trips = re.search(r'"known_trip_count":\{"n":"(\d+)"', line)
                calls[body] = (name, int(trips[1]) if trips and " while(" in line else 1)
    for name in bodies:
        inside = name
        while inside in calls:
            inside, trips = calls[inside]
            times[name] *= trips
    found: dict[str, list[tuple[int, int]]] = {}
    for name, lines in bodies.items():
        for line in lines:
            if one := re.search(rf"= (.*?) ({_KINDS})(?:-start)?\(", line):
                found.setdefault(one[2], []).append((_size(one[1]), times[name]))
    return found


def total(instructions: list[tuple[int, int]]) -> int:
    return sum(size * times for size, times in instructions)


def _size(shapes: str) -> int:
    """Bytes of a shape, or of a tuple of them: ``(f32[2,3]{1,0}, s32[])``."""
    found = re.findall(r"([a-z]+\d*)\[([\d,]*)\]", shapes)
    return sum(_BYTES[kind] * math.prod(int(side) for side in sides.split(",") if side) for kind, sides in found)
