"""Where a run is computed: on how many devices, and by which processes. Imports jax only when they are needed."""

import atexit
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import tyro

if TYPE_CHECKING:
    from jax.sharding import Mesh

Devices = Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="")]
Coordinator = Annotated[str | None, tyro.conf.arg(metavar="HOST:PORT", help_behavior_hint="")]
Number = Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="")]

HEARTBEAT = 20
"""Seconds without a sign of life after which a process counts as dead, and the others end."""
# Where a scheduler says how many processes it started. jax itself finds out which of them is this one.
_SCHEDULERS = {"SLURM_STEP_NODELIST": "SLURM_NTASKS", "OMPI_MCA_orte_hnp_uri": "OMPI_COMM_WORLD_SIZE"}


class Places(NamedTuple):
    """The devices and processes of a run, as the command line names them."""

    devices: int | None = None
    coordinator: str | None = None
    num_processes: int | None = None
    process_id: int | None = None

    def check(self) -> None:
        """Raise ``ValueError`` for numbers that cannot be."""
        named = {
            "--coordinator": self.coordinator,
            "--num-processes": self.num_processes,
            "--process-id": self.process_id,
        }
        missing = [name for name, value in named.items() if value is None]
        if 0 < len(missing) < 3:
            raise ValueError(f"{', '.join(missing)}: missing; several processes need all of {', '.join(named)}")
        if self.devices is not None and self.devices < 1:
            raise ValueError(f"--devices = {self.devices}: must be at least 1")
        if self.coordinator is None:
            return
        host, _, port = self.coordinator.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise ValueError(f"--coordinator = {self.coordinator}: must be HOST:PORT, an address of process 0")
        count, own = int(self.num_processes or 0), int(self.process_id or 0)
        if count < 1 or not 0 <= own < count:
            raise ValueError(
                f"--process-id = {own}: must be between 0 and {count - 1}, below --num-processes = {count}"
            )

    @property
    def several(self) -> bool:
        """Whether the run has more than one process."""
        if self.coordinator is not None:
            return True
        counted = (os.environ.get(count, "") for mark, count in _SCHEDULERS.items() if mark in os.environ)
        in_job = {"KUBERNETES_SERVICE_HOST", "JOB_COMPLETION_INDEX"} <= os.environ.keys()
        return in_job or any(number.isdigit() and int(number) > 1 for number in counted)

    def prepare(self) -> None:
        """Before jax starts: simulate devices, if it will run on a CPU."""
        if self.devices is not None:
            flag = f"--xla_force_host_platform_device_count={self.devices}"
            os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}".strip()

    def connect(self) -> "Mesh | None":
        """Connect the processes; the devices of the run, or None for a single one as jax chooses it."""
        import jax

        if self.several:
            jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM from us
            # Without arguments, jax asks the scheduler.
            jax.distributed.initialize(
                self.coordinator, self.num_processes, self.process_id, heartbeat_timeout_seconds=HEARTBEAT
            )
        if self.devices is None and not self.several:
            return None
        from stein import sharding

        by_process: dict[int, list[Any]] = {}
        for device in jax.devices():
            by_process.setdefault(device.process_index, []).append(device)
        for found in by_process.values():
            if len(found) < (self.devices or 1):
                raise ValueError(f"--devices = {self.devices}: there are {len(found)}, of kind {found[0].device_kind}")
        return sharding.mesh([device for found in by_process.values() for device in found[: self.devices]])


@contextlib.contextmanager
def watched(run: Any) -> Iterator[None]:
    """The work of one of several processes, in a child: where another one dies, jax ends it without a word to say.

    The parent waits for the child, hands on signals, and reports its end in one line.
    """
    reader, writer = os.pipe()  # closed by the parent's end, however it comes
    child = os.fork()
    if child:
        os.close(reader)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, _: os.kill(child, number))
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code < 0:
            killed = f"{run}: this process was killed by {signal.Signals(-code).name}; {_goes_on(run)}"
            print(f"error: {_lost(run) if code == -signal.SIGABRT else killed}", file=sys.stderr)
        sys.exit(code if code >= 0 else 1)
    os.setpgid(0, 0)  # Ctrl-C reaches it through the parent only
    os.close(writer)
    threading.Thread(target=lambda: (os.read(reader, 1), os._exit(1)), daemon=True).start()
    for stream, name in ((1, "stdout"), (2, "stderr")):  # not what gloo and XLA say about connections and their ends
        setattr(sys, name, os.fdopen(os.dup(stream), "w", buffering=1))
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    try:
        yield
    except Exception as error:
        bad_input = isinstance(error, ValueError)
        atexit.register(os._exit, getattr(error, "exit_code", 2 if bad_input else 1))  # jax would wait for the others
        from jax.errors import JaxRuntimeError

        if isinstance(error, JaxRuntimeError):
            raise RuntimeError(_lost(run)) from error
        raise


def _lost(run: Any) -> str:
    return f"{run}: another process of this run has ended, or cannot be reached; {_goes_on(run)}"


def _goes_on(run: Any) -> str:
    return f"step {run.steps_done} is saved: `stein resume {run}` with the same processes goes on"
