#!/usr/bin/env python3
"""The usual way in Python: json.load, then a pandas table of the spans. Prints how many there are.

    peer_pandas.py FILE"""
import gzip
import json
import sys

import pandas


def main():
    opener = gzip.open if sys.argv[1].endswith(".gz") else open
    with opener(sys.argv[1], "rb") as file:
        events = json.load(file)["traceEvents"]
    table = pandas.DataFrame([e for e in events if e.get("ph") == "X"])
    table["ts"] = pandas.to_numeric(table["ts"])
    table["dur"] = pandas.to_numeric(table["dur"])
    print(len(table))


if __name__ == "__main__":
    main()
