"""Small packs of every format, written by hand into a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from core.packs.clawgym import WORKSPACE

CHECK = "import json, sys\nprint(json.dumps({'a': 1.0}))\n"


def write(root: Path, files: dict[str, str | bytes]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return root


def lines(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def clawgym_folder(root: Path, task_id: str = "t1", **entry: Any) -> Path:
    fields = {"task_id": task_id, "user_query": f"Write output/{task_id}.txt.", "metadata": {"category": ""}, **entry}
    return write(
        root,
        {
            f"{task_id}/data_entry.json": json.dumps(fields),
            f"{task_id}/input_files/input/a b.csv": b"\xef\xbb\xbfx,y\r\n1,2\r\n",
            f"{task_id}/input_files/.hidden": b"",
            f"{task_id}/reward/reward.sh": "#!/usr/bin/env bash\npython3 reward/check.py .\n",
            f"{task_id}/reward/check.py": CHECK,
        },
    )


HUB = {
    "prompt": "Read input/data.csv. All file paths are relative to the workspace directory.",
    "hook_code": f"python3 reward/test.py {WORKSPACE}",
    "input_files": [
        {"file_path": "reward/test.py", "content": CHECK},
        {"file_path": "input/data.csv", "content": "a\n1\n"},
    ],
    "rule": None,
    "origin_template": "---\nid: task_00_xyz\nname: X\n---\n",
}
RULE = {"name": "clear", "file_path": "output/a.md", "scores": {"0": "missing", "0.5": "partly", "1": "clear"}}
PERSONA = {
    "prompt": "Summarise input/notes.md.",
    "hook_code": f"python3 reward/test.py {WORKSPACE}",
    "hook_lang": "bash",
    "rules": [RULE],
    "category": "Notes",
    "macro_category": "Planning & Knowl.",
    "action": ["read", "write"],
    "input_files": [
        {"file_path": "input/notes.md", "file_format": "md", "content": "x"},
        {"file_path": "reward/test.py", "file_format": "py", "content": CHECK},
    ],
}
SKILL = {
    "task_id": "s1",
    "prompt": "Convert {{input_dir}}/a.json.",
    "validation_mode": "code_and_rubric",
    "reward_aggregation": "average_code_and_rubric",
    "rules": [RULE],
    "hook_code": "python3 {{reward_dir}}/check.py",
    "hook_lang": "bash",
    "input_files": [{"file_path": "{{input_dir}}/a.json", "file_format": "json", "content": "{}"}],
    "reward_files": [{"file_path": "{{reward_dir}}/check.py", "file_format": "py", "content": CHECK}],
    "input_mount_dir": "{{input_dir}}",
    "metadata": {"category": "skill"},
    "data_entry_extra": {"path_profile": "template"},
}
SKILL_ENTRY = {
    "data_entry": {
        "task_id": "s2",
        "user_query": "Sort input/b.txt.",
        "input_mount_dir": "input",
        "workspace_root": WORKSPACE,
    },
    "input_files": [{"path": "input_files/b.txt", "content": "b\na\n"}],
    "reward_files": [{"path": "reward/reward.sh", "content": "echo 1\n"}],
}
VERL = {
    "data_source": "openai/gsm8k",
    "prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 6 times 7?"}],
    "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": "42"},
    "extra_info": {"split": "test", "index": 3},
    "agent_name": "tool_agent",
}

PINCH_OLD = """---
id: task_01_sum
name: Sum
category: files
grading_type: hybrid
timeout_seconds: 120
workspace_files:
  - path: in.txt
    content: "1 2"
  - source: doc.pdf
    dest: papers/doc.pdf
---

# Sum

## Prompt

Add the numbers of `in.txt`.

## Grading Criteria

- [ ] The sum is right

## Automated Checks

```python
def grade(transcript: list, workspace_path: str) -> dict:
    # ## not a heading
    return {"sum": 1.0}
```

## LLM Judge Rubric

### Criterion 1: Clear (Weight: 100%)
"""
PINCH_NEW = """id: task_sum_n
name: Fix sum
category: coding
grading_type: automated
workspace_files:
  - sum.py
multi_session: true
sessions:
  - id: first
    prompt: Fix `sum.py`.
  - id: second
    new_session: true
    prompt: What did you fix?

## Prompt

See the sessions.

## Automated Checks

def grade(transcript: list, workspace_path: str) -> dict:
    return {"fixed": 0.5}
"""

TOML = """schema_version = "1.1"
artifacts = []
[task]
name = "x/fix"
keywords = ["git"]
[[task.authors]]
name = "A"
[metadata]
category = "software-engineering"
expert_time_estimate_min = 5.0
written = 2026-01-02
[agent]
timeout_sec = 900.0
[verifier]
timeout_sec = 60.0
[environment]
docker_image = "x/fix:1"
cpus = 1
[environment.env]
"""


def harbor_folder(root: Path) -> Path:
    return write(
        root,
        {
            "fix-git/task.toml": TOML,
            "fix-git/instruction.md": "Fix the repository.\n",
            "fix-git/environment/Dockerfile": "FROM python:3.11\n",
            "fix-git/tests/test.sh": "echo 1 > /logs/verifier/reward.txt\n",
            "fix-git/solution/solve.sh": "git merge --no-edit recovered-branch\n",
            "fix-git/README.md": "About\n",
        },
    )


def pinch_folder(root: Path) -> Path:
    return write(
        root,
        {
            "tasks/manifest.yaml": "tasks:\n  - task_01_sum\n  - task_sum_n\n",
            "tasks/task_01_sum.md": PINCH_OLD,
            "tasks/task_sum_n.md": PINCH_NEW,
            "tasks/task_sum_n/sum.py": "def sum_n(n): return 0\n",
            "tasks/task_draft.md": "not in the manifest",
            "assets/doc.pdf": b"%PDF\xff\x00",
        },
    )
