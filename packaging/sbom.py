#!/usr/bin/env python3
"""Prints the bill of materials of a release, as CycloneDX 1.6 JSON: each file with its SHA-256, and whose code it holds.

    sbom.py VERSION PICOJSON_H ZIG_LIB FILE...

The same files give the same bytes. The time is SOURCE_DATE_EPOCH, or that of the commit; without both there is none.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
import uuid
from datetime import datetime, timezone
from pathlib import Path

# What an extension calls, and its user links; it is not part of the release.
LINKED_BY_USERS = {
    "ojs_tls.hpp": ("openssl", "Apache-2.0"),
    "ojs_river.hpp": ("libpq", "PostgreSQL"),
    "ojs_amqp.hpp": ("rabbitmq-c", "MIT"),
    "ojs_redis_streams.hpp": ("hiredis", "BSD-3-Clause"),
}
STATIC = re.compile(r"(worker|shutdown-probe)-\w+")


def sha256(path):
    return [{"alg": "SHA-256", "content": hashlib.sha256(Path(path).read_bytes()).hexdigest()}]


def library(name, license_id, scope, **more):
    expression = [{"expression": license_id}] if " " in license_id else [{"license": {"id": license_id}}]
    return {"type": "library", "bom-ref": name, "name": name, "scope": scope, "licenses": expression, **more}


def found(pattern, path):
    return re.search(pattern, path.read_text()).group(1)


def libraries(picojson, zig):
    """What is inside some of the files, then what only their users link."""
    llvm = found(r"_LIBCPP_VERSION (\d+)", zig / "libcxx/include/__config")  # 200100 is 20.1.0
    # Its file states no version; the hash says which one it is.
    yield library("picojson", "BSD-2-Clause", "required", purl="pkg:github/kazuho/picojson", hashes=sha256(picojson))
    yield library("musl", "MIT", "required", version=found(r'VERSION "(.*)"', zig / "libc/musl/src/internal/version.h"))
    yield library("llvm-libcxx", "Apache-2.0 WITH LLVM-exception", "required",
                  version=f"{int(llvm[:2])}.{int(llvm[2:4])}.{int(llvm[4:])}",
                  description="libc++, libc++abi, libunwind and compiler-rt")
    for name, license_id in LINKED_BY_USERS.values():
        yield library(name, license_id, "optional")


def needed_by(name):
    if STATIC.fullmatch(name):
        return ["llvm-libcxx", "musl", "picojson"]
    if name in LINKED_BY_USERS:
        return [LINKED_BY_USERS[name][0]]
    return ["picojson"] if name in ("ojs_shutdown.hpp", "ojs_shutdown_bundled.hpp") else []


def time_of_release():
    """[] or [ISO 8601]."""
    commit = subprocess.run("git log -1 --format=%ct", shell=True, capture_output=True, text=True).stdout  # if there is git
    seconds = os.environ.get("SOURCE_DATE_EPOCH") or commit
    return [datetime.fromtimestamp(int(seconds), timezone.utc).isoformat()] if seconds.strip() else []


def bill(version, picojson, zig, paths):
    files = [{"type": "file", "bom-ref": path.name, "name": path.name, "hashes": sha256(path)} for path in paths]
    used = {"ref": "ojs_shutdown", "dependsOn": sorted(each["bom-ref"] for each in files)}
    product = {"type": "library", "bom-ref": "ojs_shutdown", "name": "ojs_shutdown", "version": version,
               "licenses": [{"license": {"id": "Apache-2.0"}}]}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, json.dumps([version, files]))}",
        "version": 1,
        "metadata": {**{"timestamp": time for time in time_of_release()}, "component": product},
        "components": [*files, *libraries(picojson, zig)],
        "dependencies": [used, *({"ref": path.name, "dependsOn": needed_by(path.name)} for path in paths)],
    }


if __name__ == "__main__":
    version, picojson, zig, *files = sys.argv[1:]
    print(json.dumps(bill(version, picojson, Path(zig), sorted(map(Path, files))), indent=1))
