"""What runs inside the sandbox. Shipped to it as source text over a file descriptor, so it needs no file there.

Trusted code up to the moment an episode's child runs the harness; the kernel's limits are in force before that.
"""
