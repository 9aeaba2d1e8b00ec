"""Two CPU devices for all tests, so that what is said of several devices can be seen on any machine.

Here and not further down: some test modules start JAX when they are imported (bm25s does), and the count is fixed
from then on.
"""

import jax

jax.config.update("jax_num_cpu_devices", 2)
