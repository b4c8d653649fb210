"""
A Ray that several test processes share: run as a script, it lives as long as one of those that registered does.

Only one starts it, whoever comes first, for starting one takes longer than most tests.
"""

import json
import os
import secrets
import shutil
import sys
import time
from pathlib import Path


def main(directory: Path) -> None:
    """Start Ray, say where it is, and stop it when nobody needs it any more."""
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_USAGE_STATS_ENABLED": "0"}
    import ray

    started = start(ray, directory)
    ready = {"address": started.address_info["gcs_address"], "token": os.environ["RAY_AUTH_TOKEN"]}
    half = directory / "half"
    half.write_text(json.dumps(ready))
    half.rename(directory / "ready.json")
    while any(_is_alive(user) for user in (directory / "users").iterdir()):
        time.sleep(0.3)
    ray.shutdown()
    shutil.rmtree(directory)


def start(ray, directory: Path, tries: int = 4):
    """Start Ray, and retry if it times out on a busy machine."""
    try:
        return ray.init(
            address="local",
            num_cpus=2,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
            object_store_memory=80 * 2**20,
            _temp_dir=str(directory / "r"),
        )
    except Exception:
        ray.shutdown()
        if tries == 1:
            raise
        return start(ray, directory, tries - 1)


def _is_alive(user: Path) -> bool:
    return Path("/proc", user.name).exists()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
