"""Writes the golden messages as seeds for the target `decode`: one file for each session.

    python3 fuzz/seed_decode.py        (into fuzz/corpus/decode, which is not committed)
"""

import hashlib
import pathlib

here = pathlib.Path(__file__).resolve().parent
golden = here.parent / "crates/pgoutput/tests/golden"
corpus = here / "corpus/decode"


def write(seed):
    (corpus / hashlib.sha1(seed).hexdigest()).write_bytes(seed)


def main():
    corpus.mkdir(parents=True, exist_ok=True)
    for recording in sorted(golden.glob("pg*.txt")):
        seed = b""
        for line in recording.read_text().splitlines():
            words = line.split(" ")
            if words[0] == "scenario":
                if len(seed) > 1:
                    write(seed)
            elif words[0] == "proto":
                seed = bytes([int(words[1]) - 1])
            elif words[0] == "message":
                data = bytes.fromhex(words[3])
                seed += len(data).to_bytes(2, "big") + data
                write(seed[:1] + len(data).to_bytes(2, "big") + data)
        write(seed)


main()
