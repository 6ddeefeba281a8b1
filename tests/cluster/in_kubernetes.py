"""Checks objects against Kubernetes' own schemas; run with the interpreter that has ``kubernetes-validate``.

    python in_kubernetes.py VERSION...  < objects.json

Prints, for each object, what is wrong with it in any of these versions of Kubernetes.
"""

from __future__ import annotations

import json
import sys

import kubernetes_validate

found = []
for one in json.load(sys.stdin):
    problems = []
    for version in sys.argv[1:]:
        try:
            kubernetes_validate.validate(one, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            problems.append(f"{version}: {error.message}")
    found.append(problems)
print(json.dumps(found))
