"""Python's httpx and h2: each DATA frame is given back on both windows."""

import sys
import warnings

import httpx

origin, length = sys.argv[1], int(sys.argv[2])
warnings.simplefilter("ignore")


def expect(what, count, wanted):
    if count != wanted:
        sys.exit(f"{what}: {count} of {wanted}")


with httpx.Client(http2=True, verify=False, timeout=60) as client:
    for _ in range(2):
        with client.stream("GET", origin + "/large.bin") as response:
            expect("protocol", response.http_version, "HTTP/2")
            expect("a download", sum(len(piece) for piece in response.iter_raw(1000)), length)
    small = (b"x" * 20 for _ in range(5000))
    expect("an upload of small pieces", client.post(origin + "/upload", content=small).text, "100000")
