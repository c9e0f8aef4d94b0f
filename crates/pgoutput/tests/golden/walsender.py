"""Prints what a walsender sends, for the scenarios that need one session from beginning to end.

Called by record.sh: walsender.py OPTIONS. Trust authentication, PGHOST, PGPORT, PGUSER, PGDATABASE.
A message is printed as `message LSN 0 HEX`, and one made by pg_logical_emit_message with the
prefix `golden` as its content: `mark 1` tells record.sh how far the session is, `end` ends it.
"""

import os
import socket
import struct
import sys


def read_exactly(stream, size):
    data = stream.read(size)
    if len(data) != size:
        raise SystemExit("the server closed the connection")
    return data


def read_message(stream):
    kind, length = struct.unpack("!cI", read_exactly(stream, 5))
    return kind, read_exactly(stream, length - 4)


def main():
    user, database = os.environ["PGUSER"], os.environ["PGDATABASE"]
    link = socket.create_connection((os.environ["PGHOST"], int(os.environ["PGPORT"])), 30)
    stream = link.makefile("rb")
    words = ["user", user, "database", database, "replication", "database", "client_encoding",
             "UTF8", ""]
    startup = struct.pack("!I", 3 << 16) + "\0".join(words).encode() + b"\0"
    link.sendall(struct.pack("!I", len(startup) + 4) + startup)
    kind = b""
    while kind != b"Z":
        kind, body = read_message(stream)
        if kind == b"E":
            raise SystemExit(body)
    query = f"START_REPLICATION SLOT golden LOGICAL 0/0 ({sys.argv[1]})".encode() + b"\0"
    link.sendall(b"Q" + struct.pack("!I", len(query) + 4) + query)
    while True:
        kind, body = read_message(stream)
        if kind == b"E":
            raise SystemExit(body)
        if kind != b"d":
            continue
        if body[:1] == b"k" and body[17]:
            status = b"r" + struct.pack("!QQQqB", 0, 0, 0, 0, 0)
            link.sendall(b"d" + struct.pack("!I", len(status) + 4) + status)
        elif body[:1] == b"w":
            start, = struct.unpack("!Q", body[1:9])
            data = body[25:]
            prefix, _, content = data[10:].partition(b"\0")
            if data[:1] == b"M" and prefix == b"golden":
                print(content[4:].decode(), flush=True)
                if content[4:] == b"end":
                    return
            else:
                print(f"message {start >> 32:X}/{start & 0xFFFFFFFF:X} 0 {data.hex()}", flush=True)


main()
