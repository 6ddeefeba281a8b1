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
CHECKS = json.loads('{"errors_right": ["json_value", {"path": "output/errors.json", "expected": {"intake": {"errors": 2, "first": "08:54:22"}, "mailer": {"errors": 3, "first": "08:18:22"}, "router": {"errors": 4, "first": "08:08:37"}, "search": {"errors": 2, "first": "09:24:14"}, "storage": {"errors": 3, "first": "08:48:45"}}}], "ranking_right": ["lines", {"path": "output/ranking.txt", "expected": ["router", "mailer", "storage", "intake", "search"]}], "log_unchanged": ["unchanged", {"path": "logs/app.log", "text": "08:03:48 DEBUG [mailer] cache warm\\n08:04:16 WARN  [mailer] disk is slow\\n08:05:48 DEBUG [storage] cache warm\\n08:08:37 ERROR [router] disk is slow\\n08:12:19 DEBUG [router] cache warm\\n08:14:20 INFO  [router] job done\\n08:15:22 DEBUG [search] job done\\n08:18:22 ERROR [mailer] retry gave up\\n08:19:57 ERROR [mailer] no answer from peer\\n08:23:08 INFO  [mailer] job done\\n08:24:44 INFO  [search] job done\\n08:26:23 INFO  [search] job done\\n08:27:43 INFO  [intake] job done\\n08:29:53 INFO  [intake] cache warm\\n08:32:55 ERROR [router] disk is slow\\n08:35:40 INFO  [storage] job done\\n08:37:49 INFO  [search] cache warm\\n08:38:22 WARN  [storage] checksum differs\\n08:40:13 WARN  [intake] checksum differs\\n08:41:57 DEBUG [mailer] cache warm\\n08:43:02 DEBUG [intake] cache warm\\n08:46:25 INFO  [search] job done\\n08:47:07 INFO  [router] job done\\n08:48:45 ERROR [storage] checksum differs\\n08:51:04 WARN  [mailer] retry gave up\\n08:53:05 WARN  [search] disk is slow\\n08:54:22 ERROR [intake] disk is slow\\n08:58:17 WARN  [mailer] checksum differs\\n09:00:05 WARN  [router] no answer from peer\\n09:02:16 INFO  [storage] cache warm\\n09:03:35 DEBUG [search] cache warm\\n09:04:03 INFO  [storage] cache warm\\n09:04:51 INFO  [intake] cache warm\\n09:05:57 WARN  [mailer] disk is slow\\n09:06:47 DEBUG [intake] cache warm\\n09:08:02 INFO  [router] job done\\n09:10:22 WARN  [search] checksum differs\\n09:13:18 INFO  [mailer] job done\\n09:15:14 DEBUG [mailer] cache warm\\n09:17:07 INFO  [mailer] cache warm\\n09:17:43 INFO  [storage] cache warm\\n09:21:16 ERROR [storage] disk is slow\\n09:24:14 ERROR [search] no answer from peer\\n09:25:46 INFO  [router] cache warm\\n09:26:00 DEBUG [mailer] cache warm\\n09:27:05 WARN  [storage] checksum differs\\n09:30:31 ERROR [search] disk is slow\\n09:32:00 WARN  [intake] checksum differs\\n09:34:51 INFO  [search] job done\\n09:36:07 WARN  [storage] no answer from peer\\n09:37:48 WARN  [intake] retry gave up\\n09:38:10 ERROR [router] checksum differs\\n09:41:19 INFO  [router] job done\\n09:42:47 ERROR [intake] retry gave up\\n09:44:14 INFO  [router] job done\\n09:47:13 WARN  [router] retry gave up\\n09:50:44 DEBUG [router] cache warm\\n09:52:03 DEBUG [storage] cache warm\\n09:55:30 DEBUG [intake] job done\\n09:57:28 INFO  [mailer] job done\\n10:00:50 WARN  [intake] disk is slow\\n10:02:35 INFO  [mailer] cache warm\\n10:06:33 WARN  [intake] no answer from peer\\n10:06:48 DEBUG [search] cache warm\\n10:10:08 ERROR [router] no answer from peer\\n10:14:01 ERROR [mailer] checksum differs\\n10:15:04 ERROR [storage] no answer from peer\\n10:16:42 INFO  [intake] cache warm\\n10:20:28 INFO  [router] cache warm\\n10:24:12 INFO  [mailer] cache warm\\n", "produced": "output/errors.json"}]}')
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
