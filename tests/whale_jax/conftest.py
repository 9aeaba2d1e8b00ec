"""Two CPU devices for all tests here, so that what is said of several devices can be seen on any machine."""

import jax

jax.config.update("jax_num_cpu_devices", 2)
