"""What Ray's own programs make of a RayCluster; run with the interpreter that has Ray.

    python in_ray_reading.py  < cluster.json

Prints a line of JSON: ``groups``, as Ray's autoscaler reads them on KubeRay, and ``options`` of ``ray start``, to which
KubeRay hands ``rayStartParams``.
"""

from __future__ import annotations

import json
import sys

from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr
from ray.scripts.scripts import start

groups = _derive_autoscaling_config_from_ray_cr(json.load(sys.stdin))["available_node_types"]
print(json.dumps({"groups": groups, "options": [name for one in start.params for name in one.opts]}))
