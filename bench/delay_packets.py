#!/usr/bin/env python3
"""delay_packets.py MS: what this network namespace's eth0 sends to other hosts of 10.77.0.0/24 leaves MS later, until it is ended.

Kernels without netem can't do this by themselves. A TUN device takes the packets in, as large as TCP hands them to a network card;
a packet socket sends them on through eth0 and its queue."""
import collections
import fcntl
import os
import re
import select
import socket
import struct
import subprocess
import sys
import time

DEVICE, LINK = "late0", "eth0"
TUNSETIFF, TUNSETOFFLOAD, TUN_ONLY, BARE, WITH_HEADER = 0x400454CA, 0x400454D0, 0x1, 0x1000, 0x4000
CSUM_TSO4, SOL_PACKET, PACKET_VNET_HDR = 3, 263, 15
HEADER = struct.Struct("=BBHHHH")  # flags, type, length of headers, size of segments, start and place of the checksum
ETHERNET = 14


def ip(*words):
    return subprocess.run(("ip", *words), check=True, capture_output=True, text=True).stdout


def address_of(host):
    """Its link's own."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.sendto(b"", (host, 9))
    while not (found := re.search(r"lladdr (\S+)", ip("neigh", "show", host, "dev", LINK))):
        time.sleep(0.01)
    return found[1]


def main():
    delay_s = float(sys.argv[1]) / 1e3
    own = re.search(r"inet (10\.77\.0\.(\d+))", ip("-4", "addr", "show", LINK))
    others = [f"10.77.0.{n}" for n in range(1, int(os.environ["HOSTS"]) + 1) if n != int(own[2])]
    of_own = bytes.fromhex(re.search(r"ether (\S+)", ip("link", "show", LINK))[1].replace(":", ""))
    tun = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), TUN_ONLY | BARE | WITH_HEADER))
    fcntl.ioctl(tun, TUNSETOFFLOAD, CSUM_TSO4)
    out = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    out.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    out.bind((LINK, 0x0800))
    ip("link", "set", DEVICE, "txqueuelen", "10000", "up")
    frames = {}  # Ethernet headers by address
    for other in others:
        frames[socket.inet_aton(other)] = bytes.fromhex(address_of(other).replace(":", "")) + of_own + b"\x08\x00"
        ip("route", "replace", other + "/32", "dev", DEVICE, "src", own[1])
    held = collections.deque()
    while True:
        wait_s = max(held[0][0] - time.monotonic(), 0) if held else None
        if select.select([tun], [], [], wait_s)[0]:
            packet = os.read(tun, 70000)
            frame = frames.get(packet[HEADER.size + 16:HEADER.size + 20])
            if frame:
                flags, kind, length, segment, start, place = HEADER.unpack_from(packet)
                header = HEADER.pack(flags, kind, length + ETHERNET if length else 0, segment, start + ETHERNET if flags else 0, place)
                held.append((time.monotonic() + delay_s, header + frame + packet[HEADER.size:]))
        while held and held[0][0] <= time.monotonic():
            out.send(held.popleft()[1])


if __name__ == "__main__":
    main()
