"""One target of `fuzz`, with inputs guided by what code they reach; libFuzzer ends the process.

`python -m tests.campaign.guided GROUP/TARGET RUNS SEED DIR`, where atheris is installed.
"""

from __future__ import annotations

import sys
from contextlib import suppress

import atheris  # type: ignore[import-not-found, import-untyped, unused-ignore]

with atheris.instrument_imports(include=["core", "watcher"]):
    from . import fuzz

LONGEST = 2048


def main(name: str, runs: str, seed: str, place: str) -> None:
    group, _, title = name.partition("/")
    target = fuzz.TARGETS[group][title]

    def one(data: bytes) -> None:
        with suppress(*target.allowed):
            target.run(data)

    options = [f"-runs={runs}", f"-seed={seed}", f"-max_len={LONGEST}", "-rss_limit_mb=2048"]
    told = [f"-timeout={fuzz.SLOW_SECONDS}", f"-artifact_prefix={place}/", "-print_final_stats=1"]
    atheris.Setup([sys.argv[0], *options, *told, f"{place}/corpus"], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
