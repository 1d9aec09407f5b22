"""P6: the memory of a w-SVGD step in the training loop, as XLA reports it for the program that the loop compiled."""

import jax
from harness import row
from works import method, work_m

from stein import train


def step(members: int = 100) -> list[dict]:
    """Arguments, results and temporaries, shared buffers once and without the data, over the particles."""
    work = work_m(members)
    algorithm = method("w-svgd", work)
    client = jax.devices()[0].client
    state = train.begin(algorithm, jax.random.key(0), members)
    before = client.live_executables()
    train.run(algorithm, state, work.batches, 4, chunk=4)
    made = [e.get_compiled_memory_stats() for e in client.live_executables() if e not in before]
    particles, data = (_bytes(part) for part in (state.particles, (work.batches.x, work.batches.y)))
    whole = max(made, key=lambda m: m.temp_size_in_bytes + m.argument_size_in_bytes)
    state_in, state_out = whole.argument_size_in_bytes - data, whole.output_size_in_bytes - whole.alias_size_in_bytes
    beyond = state_in + state_out + whole.temp_size_in_bytes
    parts = {"arguments": state_in, "results": state_out, "temporaries": whole.temp_size_in_bytes, "data": data}
    words = ", ".join(f"{name} {value / particles:.2f}" for name, value in parts.items())
    return [row("P6 memory of a w-svgd step / the particles", work.words, beyond, particles, 8.0, unit="bytes",
                note=f"in units of the particles: {words}")]  # fmt: skip


def _bytes(arrays: object) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(arrays))
