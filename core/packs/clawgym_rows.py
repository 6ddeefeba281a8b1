"""ClawGym's JSON forms, one task a record: JSONL, a JSON array, or Parquet rows.

- hub: ``prompt, hook_code, input_files, rule, origin_template``. The id is in the template's ``id:`` line, and the
  check is the input file ``reward/test.py``.
- persona: as hub, with ``hook_lang``, ``rules`` and categories, and without a template.
- skill file: ``task_id, prompt, validation_mode, rules, hook_code, hook_lang, input_files, reward_files``.
- skill folder entry: a ``data_entry`` object beside ``input_files`` and ``reward_files`` of ``{path, content}``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from core.errors import InvalidInput
from core.packs import own_fields
from core.packs.clawgym import CHECK, REWARD, WORKSPACE, mount_prefix, reward_script, task_of_entry
from core.packs.fields import as_object, as_text, entry_of, files_of, mounted, rules_of
from core.packs.model import REWARD_SH, Files, PackFile, PackTask
from core.packs.paths import below

HUB, PERSONA, SKILL, SKILL_ENTRY = "clawgym_hub", "clawgym_persona", "clawgym_skill", "clawgym_skill_entry"
TITLES = {
    HUB: "ClawGym's hub JSONL: prompt, hook_code, input_files, rule, origin_template",
    PERSONA: "ClawGym's persona route: prompt, hook_code, hook_lang, rules, input_files",
    SKILL: "ClawGym's skill route, one file: task_id, prompt, input_files, reward_files",
    SKILL_ENTRY: "ClawGym's skill route, task records: data_entry, input_files, reward_files",
}
HOOK = f"python3 reward/test.py {WORKSPACE}"
TEST = "reward/test.py"


def form_of(row: Mapping[str, Any]) -> str | None:
    """Which of the forms a record has, or None."""
    if "data_entry" in row and "input_files" in row:
        return SKILL_ENTRY
    if {"task_id", "prompt", "reward_files"} <= row.keys():
        return SKILL
    if {"prompt", "hook_code", "input_files"} <= row.keys():
        return HUB if "origin_template" in row or "hook_lang" not in row else PERSONA
    return None


def parse(row: Mapping[str, Any], number: int) -> PackTask:
    """The task of a record; ``number`` is its place in the file, from 0.

    Raises:
        InvalidInput: a field is missing or has the wrong type, or a path leaves the workspace.
    """
    return {HUB: _hub, PERSONA: _hub, SKILL: _skill, SKILL_ENTRY: _skill_entry}[form_of(row) or HUB](row, number)


def _hub(row: Mapping[str, Any], number: int) -> PackTask:
    rest = dict(row)
    kept_fields = rest.pop(own_fields.KEY, None)
    files = files_of(rest.pop("input_files", None), "input_files")
    files = {mounted(path, (f"{WORKSPACE}/", "./"), "input_files"): one for path, one in files.items()}
    hook = as_text(rest.pop("hook_code", None) or HOOK, "hook_code")
    template = rest.get("origin_template")
    task_id = _template_id(template) if isinstance(template, str) else ""
    if template == template_of(task_id):
        del rest["origin_template"]
    rule = rest.pop("rule", None)
    rules = rules_of(rest.pop("rules", None) or (rule if isinstance(rule, list) else None), "rules")
    category = rest.pop("category", None)
    if hook != HOOK:
        rest["hook_code"] = hook
    task = PackTask(
        task_id or f"task_{number:05d}",
        as_text(rest.pop("prompt", None), "prompt"),
        input_files={path: one for path, one in files.items() if not path.startswith("reward/")},
        checker=REWARD_SH,
        checker_files=_checker_files(files, hook),
        rules=rules,
        category=as_text(category, "category") if category else None,
        extra=rest if rule is None or isinstance(rule, list) else {**rest, "rule": rule},
    )
    return own_fields.restored(task, kept_fields, files)


def _checker_files(files: Files, hook: str) -> dict[str, PackFile]:
    """``reward/`` as ClawGym's own converter lays it out: ``test.py`` is called ``check.py``, ``reward.sh`` runs it."""
    renamed = {} if _has(files, f"reward/{CHECK}") else {TEST: f"reward/{CHECK}"}
    checks = {
        renamed.get(path, path).removeprefix("reward/"): one
        for path, one in files.items()
        if path.startswith("reward/")
    }
    return checks if _has(checks, REWARD) else {REWARD: reward_script(_absolute(hook)), **checks}


def _has(files: Files, path: str) -> bool:
    """Whether there is a file or a folder of this name."""
    return path in files or bool(below(files, path))


def _absolute(hook: str) -> str:
    """The hook with the check's path in the workspace, as ClawGym's ``build_dataset_from_hf.py`` writes it."""
    relative = hook.replace(f"{WORKSPACE}/reward/", "reward/").replace(TEST, f"reward/{CHECK}")
    return relative.replace(f"reward/{CHECK}", f"{WORKSPACE}/reward/{CHECK}")


def _template_id(template: str) -> str:
    lines = [line.strip() for line in template.split("\n")]
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("id:")), "")


def template_of(task_id: str) -> str:
    """The shortest template that names this id."""
    return f"---\nid: {task_id}\n---\n"


def _skill(row: Mapping[str, Any], number: int) -> PackTask:
    rest = dict(row)
    kept_fields = rest.pop(own_fields.KEY, None)
    inputs = files_of(rest.pop("input_files", None), "input_files")
    checks = files_of(rest.pop("reward_files", None), "reward_files")
    hook = rest.pop("hook_code", None)
    language = rest.pop("hook_lang", None)
    entry = as_object(rest.pop("data_entry_extra", None), "data_entry_extra")
    entry |= {name: value for name, value in rest.items() if name not in {"prompt", "input_mount_dir"}}
    root = rest.get("workspace_root")
    roots = ["{{reward_dir}}/", "reward/", f"{WORKSPACE}/reward/", "/workspace/reward/"]
    if isinstance(root, str):
        roots.append(f"{root.rstrip('/')}/reward/")
    reward = {mounted(path, roots, "reward_files"): one for path, one in checks.items()}
    if isinstance(hook, str) and hook.strip():
        if language not in {None, "bash"}:
            raise InvalidInput(f"hook_lang is {language!r}", field="hook_lang", hint="bash")
        reward.setdefault(REWARD, PackFile(f"#!/bin/bash\n{hook.rstrip()}\n".encode(), executable=True))
    task = replace(
        task_of_entry({**entry, "user_query": row.get("prompt")}),
        input_files={_in_workspace(path, root): one for path, one in inputs.items()},
        checker=REWARD_SH if REWARD in reward else None,
        checker_files=reward,
    )
    return own_fields.restored(task, kept_fields, {**inputs, **checks})


def _in_workspace(path: str, root: Any) -> str:
    if path.startswith("{{input_dir}}/"):
        path = f"input/{path.removeprefix('{{input_dir}}/')}"
    if path.startswith("/") and not path.startswith((f"{WORKSPACE}/", "/workspace/")) and "/input/" in path:
        path = f"input/{path.partition('/input/')[2]}"
    roots = [f"{root.rstrip('/')}/"] if isinstance(root, str) and root.strip("/") else []
    return mounted(path, [*roots, f"{WORKSPACE}/", "/workspace/", "./"], "input_files")


def _skill_entry(row: Mapping[str, Any], number: int) -> PackTask:
    entry = as_object(row.get("data_entry"), "data_entry")
    inputs = files_of(row.get("input_files"), "input_files", "path")
    checks = files_of(row.get("reward_files"), "reward_files", "path")
    prefix = mount_prefix(entry.get("input_mount_dir"), entry.get("workspace_root"))
    reward = {mounted(path, ("reward/",), "reward_files"): one for path, one in checks.items()}
    if REWARD in reward:
        reward[REWARD] = replace(reward[REWARD], executable=True)
    return replace(
        task_of_entry(entry),
        input_files={prefix + mounted(p, ("input_files/",), "input_files"): one for p, one in inputs.items()},
        checker=REWARD_SH if REWARD in reward else None,
        checker_files=reward,
    )


def row_of(task: PackTask) -> dict[str, Any]:
    """The task as a record of the hub form."""
    hook = task.extra.get("hook_code")
    hook = hook if isinstance(hook, str) and hook.strip() else HOOK
    template = task.extra.get("origin_template")
    reward = dict(task.checker_files)
    if reward.get(REWARD) == reward_script(_absolute(hook)):
        del reward[REWARD]
    if CHECK in reward and "test.py" not in reward:
        reward = {("test.py" if path == CHECK else path): one for path, one in reward.items()}
    files = {path: one for path, one in task.input_files.items() if not path.startswith("reward/")}
    files |= {f"reward/{path}": one for path, one in reward.items()}
    own = {"prompt", "hook_code", "input_files", "rule", "rules", "origin_template", "category", own_fields.KEY}
    own |= {"task_id", "reward_files", "data_entry", "hook_lang"}
    row: dict[str, Any] = {
        "prompt": task.query,
        "hook_code": hook,
        "input_files": [entry_of(path, one) for path, one in files.items()],
        "rule": list(task.rules) or None,
        "origin_template": template if isinstance(template, str) else template_of(task.task_id),
        **{name: value for name, value in task.extra.items() if name not in own},
        **({} if task.category is None else {"category": task.category}),
    }
    try:
        natural = _hub(row, 0)
    except InvalidInput:  # a field of another format has a name that means something else here
        row = {name: row[name] for name in ("prompt", "input_files")} | {"hook_code": HOOK, "rule": None}
        row["origin_template"] = template_of(task.task_id)
        natural = _hub(row, 0)
    stored = own_fields.differing(natural, task, files)
    return {**row, own_fields.KEY: stored} if stored else row
