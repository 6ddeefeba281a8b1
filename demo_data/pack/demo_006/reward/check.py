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
CHECKS = json.loads('{"errors_right": ["json_value", {"path": "output/errors.json", "expected": {"intake": {"errors": 1, "first": "09:37:00"}, "mailer": {"errors": 3, "first": "08:02:56"}, "router": {"errors": 1, "first": "09:54:54"}, "search": {"errors": 3, "first": "08:49:39"}, "storage": {"errors": 1, "first": "08:52:06"}}}], "ranking_right": ["lines", {"path": "output/ranking.txt", "expected": ["mailer", "search", "intake", "router", "storage"]}], "log_unchanged": ["unchanged", {"path": "logs/app.log", "text": "08:02:56 ERROR [mailer] retry gave up\\n08:03:25 ERROR [mailer] disk is slow\\n08:05:33 DEBUG [router] cache warm\\n08:05:38 DEBUG [router] job done\\n08:07:35 DEBUG [storage] job done\\n08:09:38 WARN  [mailer] retry gave up\\n08:11:38 DEBUG [search] cache warm\\n08:15:35 DEBUG [mailer] job done\\n08:19:30 WARN  [mailer] checksum differs\\n08:22:50 WARN  [mailer] retry gave up\\n08:23:12 WARN  [router] retry gave up\\n08:24:56 INFO  [storage] job done\\n08:26:45 DEBUG [search] cache warm\\n08:28:10 DEBUG [intake] cache warm\\n08:29:02 DEBUG [mailer] job done\\n08:30:32 INFO  [storage] cache warm\\n08:31:02 DEBUG [search] job done\\n08:34:47 DEBUG [router] cache warm\\n08:36:22 INFO  [mailer] cache warm\\n08:39:26 WARN  [intake] disk is slow\\n08:40:54 INFO  [storage] cache warm\\n08:43:58 WARN  [search] no answer from peer\\n08:44:49 INFO  [router] cache warm\\n08:47:20 INFO  [mailer] cache warm\\n08:49:39 ERROR [search] retry gave up\\n08:49:52 DEBUG [search] job done\\n08:50:20 INFO  [intake] job done\\n08:52:06 ERROR [storage] checksum differs\\n08:54:49 INFO  [storage] cache warm\\n08:57:29 INFO  [router] cache warm\\n08:59:42 DEBUG [storage] job done\\n09:00:48 ERROR [search] no answer from peer\\n09:02:42 WARN  [mailer] checksum differs\\n09:04:10 INFO  [search] cache warm\\n09:06:15 WARN  [storage] checksum differs\\n09:07:07 INFO  [storage] cache warm\\n09:09:29 INFO  [router] cache warm\\n09:13:28 DEBUG [intake] job done\\n09:17:10 INFO  [intake] job done\\n09:20:57 ERROR [search] checksum differs\\n09:22:37 INFO  [mailer] job done\\n09:24:07 DEBUG [search] cache warm\\n09:24:13 DEBUG [storage] cache warm\\n09:27:07 WARN  [router] checksum differs\\n09:27:59 INFO  [mailer] job done\\n09:31:18 INFO  [storage] job done\\n09:34:16 INFO  [search] cache warm\\n09:37:00 ERROR [intake] no answer from peer\\n09:40:40 INFO  [storage] cache warm\\n09:42:30 INFO  [search] job done\\n09:43:58 WARN  [storage] retry gave up\\n09:47:07 INFO  [router] job done\\n09:47:31 INFO  [storage] cache warm\\n09:49:57 WARN  [mailer] retry gave up\\n09:51:06 DEBUG [intake] job done\\n09:54:54 ERROR [router] retry gave up\\n09:58:06 INFO  [intake] job done\\n09:58:38 INFO  [storage] job done\\n09:59:07 INFO  [mailer] cache warm\\n10:02:25 INFO  [router] job done\\n10:05:31 INFO  [search] job done\\n10:05:42 WARN  [intake] no answer from peer\\n10:09:05 INFO  [intake] cache warm\\n10:13:00 ERROR [mailer] disk is slow\\n10:16:50 INFO  [search] job done\\n", "produced": "output/errors.json"}]}')
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
