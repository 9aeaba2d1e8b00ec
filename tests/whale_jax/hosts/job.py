"""The processes of one job on this machine, started and waited for together."""

import socket
import subprocess
import sys
from pathlib import Path

from tests.whale_jax.demo_run import environment

ROOT = Path(__file__).resolve().parents[3]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


class Job:
    """The processes of one small run, or of another module."""

    def __init__(
        self,
        run_dir: Path | str,
        count: int = 2,
        *flags: str,
        devices: int = 0,
        own: dict[int, tuple[str, ...]] | None = None,
        module: str = "tests.whale_jax.hosts.small_job",
        compiled: Path | None = None,
        **env: str,
    ):
        """Starts them, each with two devices, one process alone with four.

        Args:
            devices: another number of them.
            own: flags of single processes.
            module: what is run; but for the main job, its first argument is `run_dir`.
            compiled: where compiled programs are kept; default: beside a local `run_dir`.
        """
        together: tuple[str, ...] = ()
        if count > 1:
            together = (f"--num_processes={count}", f"--coordinator_address=127.0.0.1:{free_port()}")
        platform = {
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices or (2 if count > 1 else 4)} "
            "--xla_backend_optimization_level=0"  # compiles faster
        }
        self.processes = []
        for process in range(count):
            mine = (f"--process_id={process}",) if count > 1 else ()
            where = f"--run_dir={run_dir}" if module == "whale_jax.main" else str(run_dir)
            command = [sys.executable, "-m", module, where]
            self.processes.append(
                subprocess.Popen(
                    [*command, *together, *mine, *flags, *(own or {}).get(process, ())],
                    cwd=ROOT,
                    env={**environment(compiled or Path(run_dir).parent / "compiled"), **platform, **env},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )

    def ends(self) -> list[tuple[int, str]]:
        """Exit status and errors of each process."""
        try:
            errors = [process.communicate(timeout=280)[1] for process in self.processes]
        finally:
            for process in self.processes:
                process.kill()
                process.communicate()
        return [(process.returncode, error) for process, error in zip(self.processes, errors, strict=True)]

    def succeeds(self) -> None:
        ends = self.ends()
        assert [status for status, _ in ends] == [0] * len(ends), ends
