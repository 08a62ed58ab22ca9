"""How much memory is free: the machine's or the control group's, whichever is less."""

from __future__ import annotations

from pathlib import Path

import pytest

from poolish.load.memory_cache import free_bytes

MEMINFO = "MemTotal:       16000000 kB\nMemFree:   100 kB\nMemAvailable:    8000 kB\n"


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ({}, 8_192_000),
        (  # a group without a limit
            {
                "proc/self/cgroup": "0::/jobs/mine\n",
                "sys/fs/cgroup/jobs/mine/memory.max": "max\n",
                "sys/fs/cgroup/jobs/mine/memory.current": "5000\n",
            },
            8_192_000,
        ),
        (  # cached files are free
            {
                "proc/self/cgroup": "0::/jobs/mine\n",
                "sys/fs/cgroup/jobs/mine/memory.max": "6000\n",
                "sys/fs/cgroup/jobs/mine/memory.current": "5000\n",
                "sys/fs/cgroup/jobs/mine/memory.stat": "anon 900\ninactive_file 300\n",
            },
            1_300,
        ),
        (  # a group above has less left
            {
                "proc/self/cgroup": "0::/jobs/mine\n",
                "sys/fs/cgroup/jobs/mine/memory.max": "6000\n",
                "sys/fs/cgroup/jobs/mine/memory.current": "1000\n",
                "sys/fs/cgroup/jobs/memory.max": "8000\n",
                "sys/fs/cgroup/jobs/memory.current": "7500\n",
            },
            500,
        ),
        (  # in a container: the path is the host's, the mount is the group
            {
                "proc/self/cgroup": "0::/docker/123\n",
                "sys/fs/cgroup/memory.max": "6000\n",
                "sys/fs/cgroup/memory.current": "7000\n",
            },
            0,
        ),
        (  # the first version of control groups
            {
                "proc/self/cgroup": "9:name=systemd:/\n4:cpu,memory:/mine\n3:cpuset:/\n0::/\n",
                "sys/fs/cgroup/memory/mine/memory.limit_in_bytes": "6000\n",
                "sys/fs/cgroup/memory/mine/memory.usage_in_bytes": "2000\n",
                "sys/fs/cgroup/memory/mine/memory.stat": "total_inactive_file 30\n",
            },
            4_030,
        ),
    ],
)
def test_the_least_limit_counts(tmp_path, groups, expected):
    """Whether it is the machine's or that of any group around the process."""
    assert free_bytes(write(tmp_path, {"proc/meminfo": MEMINFO, **groups})) == expected


def test_a_system_that_tells_nothing_is_guessed(tmp_path):
    """Half of what is built in."""
    assert free_bytes(tmp_path) > 2**20
