"""`python -m tests.campaign`: runs the parts, two at a time, and tells in one table what held."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .frame import SIZES, SOFT_MINUTES, Job, Part, Row, run_part, summary
from .parts import PARTS
from .report import LAST, save, table, write_readme


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.campaign", description=__doc__)
    parser.add_argument("--size", choices=SIZES, help="how much; without it nothing is run")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--parts", help="only these, by name, with commas between")
    parser.add_argument("--count", type=int, help="instead of what the size says")
    parser.add_argument("--minutes", type=float, help="begin nothing new in a part after so long")
    parser.add_argument("--jobs", type=int, default=2, help="so many parts at a time")
    parser.add_argument("--scratch", type=Path, help="where all of it takes place")
    parser.add_argument("--json", type=Path, help="add the figures to this file")
    parser.add_argument(
        "--write-readme", action="store_true", help=f"keep the figures in {LAST.name} and README"
    )
    options = parser.parse_args(arguments)
    if not options.size and not options.write_readme:
        parser.error("say --size ci, night or release")
    return options


def chosen(names: str | None) -> list[Part]:
    known = {part.name: part for part in PARTS}
    wanted = names.split(",") if names else list(known)
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise SystemExit(f"No part is named {', '.join(unknown)}; there are: {', '.join(known)}")
    return [known[name] for name in wanted]


def campaign(options: argparse.Namespace, scratch: Path) -> list[Row]:
    """All chosen parts; a line as each comes to its end."""
    limit = 60 * (options.minutes or SOFT_MINUTES[options.size])

    def one(part: Part) -> Row:
        count = part.counts[options.size] if options.count is None else options.count
        row = run_part(part, Job(scratch / part.name, options.seed, count), limit)
        print(summary(row), flush=True)
        return row

    with ThreadPoolExecutor(options.jobs) as pool:
        return list(pool.map(one, chosen(options.parts)))


def run(options: argparse.Namespace) -> int:
    if options.scratch is not None:
        options.scratch.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="turnmark-campaign-", dir=options.scratch))
    print(f"campaign: {options.size}, seed {options.seed}, in {scratch}", flush=True)
    rows = campaign(options, scratch)
    print("\n" + table(rows), flush=True)
    if options.json:
        save(options.json, rows, options.size, options.seed)
    if options.write_readme:
        save(LAST, rows, options.size, options.seed)
    if any(row.figures.found for row in rows):
        print(f"FAILED with seed {options.seed}; kept for a look: {scratch}", file=sys.stderr)
        return 1
    shutil.rmtree(scratch)
    return 0


def main() -> int:
    options = parse()
    status = run(options) if options.size else 0
    if options.write_readme:
        write_readme([part.name for part in PARTS])
    return status


if __name__ == "__main__":
    sys.exit(main())
