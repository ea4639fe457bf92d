"""Ports for the processes that a test or a benchmark starts."""
import random
import socket


def free_ports(n=1):
    """Returns n ports of 127.0.0.1 that nobody has. They are below those that the kernel gives to connections, which may take
    any of its own between this look and the process's bind, and could even connect to themselves there."""
    with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as file:
        first = int(file.read().split()[0])
    ports = []
    for port in random.sample(range(10000, first) if first > 20000 else range(1024, 65536), 1000):
        with socket.socket() as one:
            try:
                one.bind(("127.0.0.1", port))
            except OSError:
                continue
        ports.append(port)
        if len(ports) == n:
            return ports
    raise OSError("no free port")
