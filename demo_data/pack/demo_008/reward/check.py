"""Checks a workspace and prints one value in [0, 1] for each check, as JSON. Its argument is the workspace.

``make_pack.py`` writes a copy of this program beside each task, with the task's own checks in ``CHECKS``.
"""

import csv
import json
import re
import subprocess
import sys
from pathlib import Path

WORKSPACE = "/root/.openclaw/workspace"
CHECKS = json.loads('{"errors_right": ["json_value", {"path": "output/errors.json", "expected": {"intake": {"errors": 3, "first": "08:30:14"}, "mailer": {"errors": 2, "first": "09:18:13"}, "router": {"errors": 3, "first": "08:12:39"}, "search": {"errors": 4, "first": "08:17:19"}, "storage": {"errors": 5, "first": "08:08:47"}}}], "ranking_right": ["lines", {"path": "output/ranking.txt", "expected": ["storage", "search", "intake", "router", "mailer"]}], "log_unchanged": ["unchanged", {"path": "logs/app.log", "text": "08:00:28 DEBUG [router] job done\\n08:02:07 WARN  [mailer] checksum differs\\n08:04:45 DEBUG [storage] job done\\n08:07:32 DEBUG [router] job done\\n08:08:47 ERROR [storage] disk is slow\\n08:12:39 ERROR [router] checksum differs\\n08:14:10 ERROR [router] disk is slow\\n08:15:32 WARN  [mailer] retry gave up\\n08:15:55 INFO  [router] job done\\n08:17:19 ERROR [search] retry gave up\\n08:19:47 WARN  [router] retry gave up\\n08:23:27 DEBUG [mailer] cache warm\\n08:27:02 INFO  [search] job done\\n08:30:14 ERROR [intake] disk is slow\\n08:33:00 INFO  [storage] job done\\n08:33:22 DEBUG [intake] job done\\n08:36:12 WARN  [search] retry gave up\\n08:39:33 ERROR [storage] retry gave up\\n08:40:32 WARN  [mailer] retry gave up\\n08:41:16 ERROR [intake] no answer from peer\\n08:44:24 DEBUG [mailer] job done\\n08:44:35 WARN  [intake] retry gave up\\n08:48:25 WARN  [search] disk is slow\\n08:49:47 INFO  [search] job done\\n08:51:27 DEBUG [router] job done\\n08:52:04 DEBUG [router] cache warm\\n08:55:29 DEBUG [search] job done\\n08:55:58 INFO  [storage] cache warm\\n08:56:51 INFO  [mailer] cache warm\\n08:57:42 DEBUG [intake] job done\\n08:57:56 ERROR [search] no answer from peer\\n09:01:47 INFO  [search] cache warm\\n09:05:14 INFO  [mailer] cache warm\\n09:05:40 INFO  [storage] cache warm\\n09:06:59 INFO  [search] cache warm\\n09:09:40 INFO  [search] cache warm\\n09:12:27 INFO  [mailer] job done\\n09:13:04 DEBUG [intake] job done\\n09:13:17 WARN  [search] no answer from peer\\n09:15:42 INFO  [router] job done\\n09:15:55 WARN  [router] no answer from peer\\n09:18:13 ERROR [mailer] disk is slow\\n09:18:42 WARN  [router] retry gave up\\n09:19:08 INFO  [mailer] cache warm\\n09:23:00 INFO  [intake] cache warm\\n09:26:56 INFO  [storage] job done\\n09:27:07 INFO  [storage] cache warm\\n09:29:05 ERROR [storage] retry gave up\\n09:29:20 INFO  [router] cache warm\\n09:32:29 DEBUG [storage] cache warm\\n09:34:16 ERROR [search] no answer from peer\\n09:36:47 INFO  [intake] cache warm\\n09:37:54 INFO  [search] cache warm\\n09:41:06 DEBUG [mailer] cache warm\\n09:41:41 ERROR [storage] disk is slow\\n09:44:17 INFO  [intake] cache warm\\n09:47:50 WARN  [mailer] disk is slow\\n09:48:14 INFO  [search] job done\\n09:48:49 INFO  [search] job done\\n09:49:44 ERROR [storage] disk is slow\\n09:52:05 INFO  [intake] job done\\n09:52:16 DEBUG [intake] cache warm\\n09:55:10 ERROR [router] disk is slow\\n09:58:10 INFO  [search] job done\\n09:58:55 INFO  [search] job done\\n10:02:47 WARN  [search] no answer from peer\\n10:04:40 WARN  [intake] checksum differs\\n10:04:56 INFO  [router] job done\\n10:07:31 DEBUG [search] job done\\n10:10:05 WARN  [intake] disk is slow\\n10:10:14 INFO  [mailer] job done\\n10:12:18 ERROR [intake] retry gave up\\n10:16:15 ERROR [mailer] checksum differs\\n10:19:32 ERROR [search] retry gave up\\n10:23:11 DEBUG [search] job done\\n", "produced": "output/errors.json"}]}')
GATED = False


def read(workspace, name):
    """Text of a file without a byte order mark; None if it is missing or not text."""
    try:
        return (workspace / name).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError):
        return None


def parsed(workspace, name):
    """A JSON file's value; None if it is missing or not JSON."""
    try:
        return json.loads(read(workspace, name) or "")
    except ValueError:
        return None


def same(found, expected, tolerance):
    """Whether two JSON values are equal; numbers within the tolerance, true and false only to themselves."""
    if isinstance(expected, dict):
        alike = isinstance(found, dict) and found.keys() == expected.keys()
        return alike and all(same(found[key], expected[key], tolerance) for key in expected)
    if isinstance(expected, list):
        alike = isinstance(found, list) and len(found) == len(expected)
        return alike and all(same(a, b, tolerance) for a, b in zip(found, expected, strict=True))
    if isinstance(expected, bool) or isinstance(found, bool):
        return found is expected
    if isinstance(expected, int | float):
        return isinstance(found, int | float) and abs(found - expected) <= tolerance
    return found == expected


def json_value(workspace, path, expected, key=None, tolerance=0.0):
    """The value of a JSON file, or of one key of it."""
    found = parsed(workspace, path)
    if key is not None:
        found = found.get(key) if isinstance(found, dict) else None
    return found is not None and same(found, expected, tolerance)


def csv_rows(workspace, path, rows):
    """Header and rows of a CSV file, in this order."""
    text = read(workspace, path)
    if text is None:
        return False
    found = [[cell.strip() for cell in row] for row in csv.reader(text.splitlines()) if row]
    return found == rows


def lines(workspace, path, expected):
    """The lines of a text file, without spaces at their ends and without empty ones."""
    text = read(workspace, path)
    return text is not None and [line.rstrip() for line in text.splitlines() if line.strip()] == expected


def contains(workspace, path, phrases):
    """Share of these phrases that a text has; upper and lower case are the same."""
    text = read(workspace, path)
    if text is None:
        return 0.0
    words = " ".join(text.lower().split())
    return sum(" ".join(phrase.lower().split()) in words for phrase in phrases) / len(phrases)


def lacks(workspace, path, phrases):
    """The file has text, and none of these phrases."""
    text = read(workspace, path)
    return bool(text and text.strip()) and not any(phrase.lower() in text.lower() for phrase in phrases)


def at_most_words(workspace, path, n):
    """The file has text of at most n words."""
    text = read(workspace, path)
    return text is not None and 0 < len(re.findall(r"\S+", text)) <= n


def files_in(workspace, folder, names):
    """The folder has these files and no others."""
    base = workspace / folder
    return base.is_dir() and sorted(one.name for one in base.iterdir()) == sorted(names)


def calls(workspace, path, function, cases):
    """Share of calls of a function in a Python file that return what they should."""
    program = (
        "import importlib.util, json, sys\n"
        "spec = importlib.util.spec_from_file_location('tried', sys.argv[1])\n"
        "module = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
        "print(json.dumps(getattr(module, sys.argv[2])(*json.loads(sys.argv[3]))))\n"
    )
    right = 0
    for arguments, expected in cases:
        command = [sys.executable, "-B", "-c", program, str(workspace / path), function, json.dumps(arguments)]
        try:
            ran = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
            right += same(json.loads(ran.stdout.splitlines()[-1]), expected, 1e-9)
        except (OSError, subprocess.SubprocessError, ValueError, IndexError):
            continue
    # Cases that the untouched file gets right show nothing unless all are right.
    return 1.0 if right == len(cases) else 0.0


def unchanged(workspace, path, text, produced):
    """An input is as it was, and the output has been written."""
    return (workspace / produced).is_file() and read(workspace, path) == text


def grade(transcript, workspace_path):
    """Check name -> value."""
    workspace = Path(workspace_path)
    values = {name: float(globals()[kind](workspace, **given)) for name, (kind, given) in CHECKS.items()}
    if not GATED:
        return values
    # As in ClawGym's skill route: one more value, which is 0 unless something was produced.
    reward = sum(values.values()) / len(values) if any(values.values()) else 0.0
    return {"reward": reward, **values}


if __name__ == "__main__":
    print(json.dumps(grade([], sys.argv[1] if len(sys.argv) > 1 else WORKSPACE)))
