"""Protobuf as it is on the wire: an independent reader and writer, as slow as it is short."""


def read_varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at


def varint(value):
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def raw_fields(data):
    """(number, value, the field as it stands)"""
    at = 0
    while at < len(data):
        start = at
        tag, at = read_varint(data, at)
        if tag & 7 == 0:
            value, at = read_varint(data, at)
        else:
            size = {1: 8, 5: 4}.get(tag & 7)
            if size is None:
                size, at = read_varint(data, at)
            value = data[at:at + size]
            at += size
        yield tag >> 3, value, data[start:at]


def fields(data):
    """(number, value) of a message."""
    for number, value, _ in raw_fields(data):
        yield number, value


def number(field, value):
    return varint(field << 3) + varint(value)


def message(field, content):
    """Also a text."""
    return varint(field << 3 | 2) + varint(len(content)) + content
