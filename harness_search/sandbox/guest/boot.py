"""First code in the sandbox: `python -c <this file> CONTROL_FD JOB_FD`.

The job is one JSON object whose "modules" maps names to source texts; they are imported from memory. So the sandbox
needs nothing but a Python installation, and it does not matter whether its user may read this project's folder. Its
"entry" names the module whose `serve(control_fd, job)` goes on.
"""

import importlib
import importlib.abc
import importlib.util
import json
import os
import sys


class Shipped(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Imports the modules that came with the job."""

    def __init__(self, sources):
        self.sources = sources

    def find_spec(self, fullname, path=None, target=None):
        if fullname not in self.sources:
            return None
        package = any(name.startswith(fullname + ".") for name in self.sources)
        return importlib.util.spec_from_loader(fullname, self, is_package=package)

    def get_source(self, fullname):
        return self.sources[fullname]

    def is_package(self, fullname):
        return any(name.startswith(fullname + ".") for name in self.sources)


def main(control_fd, job_fd):
    with os.fdopen(job_fd, "rb") as file:
        job = json.load(file)
    sys.meta_path.insert(0, Shipped(job.pop("modules")))
    importlib.import_module(job.pop("entry")).serve(control_fd, job)


main(int(sys.argv[1]), int(sys.argv[2]))
