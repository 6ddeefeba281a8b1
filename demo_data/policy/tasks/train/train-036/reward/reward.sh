#!/usr/bin/env bash
# Prints the mean of the check's values as the last line.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
python3 "$here/check.py" "${1:-.}" | python3 -c 'import json, sys
values = list(json.load(sys.stdin).values())
print(sum(values) / len(values))'
