"""What one harness episode, and the server that forks it, may use of the machine."""

from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True)
class Limits:
    """Per episode. The wall clock is part of the budgets, not of these."""

    memory_bytes: int = 512 * MIB
    """Address space of the child (RLIMIT_AS), the interpreter's own 100 MiB or so included."""
    cpu_seconds: int = 60
    """Computing time of the child; its end counts as a timeout."""
    max_messages: int = 20_000
    """Chat operations and calls an episode may send."""
    max_bytes: int = 64 * MIB
    """Bytes an episode may send in all."""
    start_seconds: float = 30.0
    """How long the sandbox may take to come up, and a child to be forked."""
    load_seconds: float = 10.0
    """How long the file's top level may run when the harness is first loaded."""

    def of_child(self) -> dict[str, int]:
        """Resource limits by name, as `resource.RLIMIT_<name>`."""
        return {
            "CORE": 0,
            "FSIZE": 0,
            "NPROC": 0,
            "NOFILE": 64,
            "CPU": self.cpu_seconds,
            "AS": self.memory_bytes,
        }

    def of_server(self) -> dict[str, int]:
        return {"CORE": 0, "FSIZE": 0, "NOFILE": 256}


DEFAULT_LIMITS = Limits()
