"""Generates the reference pages from code: ``python docs/make_reference.py`` writes cli, http, settings and glossary.

``tests/test_docs.py`` compares them with this program's output, so no command, route, setting or term is missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
MADE = "<!-- Made by docs/make_reference.py. Change the code it reads, then run it. -->\n"


def _row(*cells: str) -> str:
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |\n"


def cli() -> str:
    """Every command with its arguments and options."""
    import typer

    from core.cli import command_line

    return (
        MADE
        + "# Commands\n\nWithout a command `claw-studio` opens the pages.\n\n"
        + "".join(_commands(typer.main.get_command(command_line()), "claw-studio"))
    )


def _commands(group: Any, path: str) -> Iterator[str]:
    for name, command in sorted(group.commands.items()):
        called = f"{path} {name}"
        if hasattr(command, "commands"):
            yield from _commands(command, called)
            continue
        arguments = [p for p in command.params if p.param_type_name == "argument"]
        options = [p for p in command.params if p.param_type_name == "option"]
        usage = " ".join(
            f"{p.name.upper()}{'...' if p.nargs == -1 else ''}" if p.required else f"[{p.name.upper()}]"
            for p in arguments
        )
        yield f"## {called}\n\n{(command.help or '').strip()}\n\n"
        yield f"```sh\n{called}{' ' * bool(usage)}{usage} [OPTIONS]\n```\n\n"
        if arguments or options:
            yield _row("argument or option", "meaning") + "|---|---|\n"
            for p in [*arguments, *options]:
                spelt = p.name.upper() if p.param_type_name == "argument" else ", ".join([*p.opts, *p.secondary_opts])
                yield _row(f"`{spelt}`", p.help or "")
            yield "\n"


def http() -> str:
    """Every route with its parameters, body fields and statuses."""
    from core.api.openapi import document

    made = document()
    schemas = made["components"]["schemas"]
    by_tag: dict[str, list[str]] = {}
    for path, methods in made["paths"].items():
        for method, operation in methods.items():
            by_tag.setdefault(operation["tags"][0], []).append(_route(method.upper(), path, operation, schemas))
    text = (
        "# HTTP\n\nA running studio serves the same as `/docs` and `/openapi.json`. Errors are JSON with "
        "`type`, `message`, and where it applies `field` and `hint`; model calls get them in their API's shape.\n\n"
    )
    for tag, routes in by_tag.items():
        text += (
            f"## {tag}\n\n"
            + _row("route", "does", "parameters and body", "errors")
            + "|---|---|---|---|\n"
            + "".join(routes)
            + "\n"
        )
    return MADE + text


def _route(method: str, path: str, operation: dict[str, Any], schemas: dict[str, Any]) -> str:
    names = [f"`?{p['name']}=`" for p in operation["parameters"] if p["in"] == "query"]
    for media in operation.get("requestBody", {}).get("content", {}).values():
        schema = media["schema"]
        if "$ref" in schema:
            schema = schemas[schema["$ref"].rsplit("/", 1)[1]]
        required = set(schema.get("required", ()))
        names += [f"`{name}`{'' if name in required else '?'}" for name in schema.get("properties", {})]
    statuses = ", ".join(code for code in operation["responses"] if code != "200")
    does = operation["summary"] + (f". {operation['description']}" if operation.get("description") else "")
    return _row(f"`{method} {path}`", does, " ".join(names), statuses)


def settings() -> str:
    """Every setting with its default."""
    from core.config import ENV_PREFIX, EngineConfig, Settings

    text = (
        "# Settings\n\nA setting is read from the command line, then the environment, then `studio.toml` in the "
        f"working folder (or the file named by `{ENV_PREFIX}CONFIG`), then its default. The environment variable is "
        f"`{ENV_PREFIX}` and the name in capitals.\n\n"
    )
    for title, model in (("", Settings), ("## `[[engines]]`\n\n", EngineConfig)):
        text += title + _row("setting", "default", "meaning") + "|---|---|---|\n"
        for name, field in model.model_fields.items():
            default = "required" if field.is_required() else f"`{_default(field.default)}`"
            text += _row(f"`{name}`", default, field.description or "")
        text += "\n"
    return MADE + text


def _default(value: Any) -> str:
    if isinstance(value, Path):
        return str(value)
    return (
        {None: "none", (): "none"}.get(value, str(value))
        if not isinstance(value, dict)
        else (str(value) if value else "none")
    )


FIELDS = {
    "step": ("step_uid", "prompt_ids", "response_ids", "response_logprobs"),
    "trajectory": ("trajectory_uid", "step_index"),
    "prompt group": ("prompt_uid",),
    "channel": ("channel",),
    "source": ("source",),
    "agent": ("agent",),
    "rollout log-probs": ("response_logprobs",),
    "policy version": ("policy_version",),
    "reward": ("reward",),
    "annotation": ("kind", "author"),
    "trainable": ("trainable",),
    "transition": ("transition",),
    "call kind": ("call_kind",),
    "mismatch": ("mismatch",),
}
"""The name of a term in code, tables and API, if it is different there or is a field."""


def glossary() -> str:
    """The words of pages, API and code."""
    from studio.glossary import WORDS

    text = (
        "# Glossary\n\nOne spelling and one meaning in code, tables, API and pages.\n\n"
        + _row("word", "meaning", "in code, tables and API")
        + "|---|---|---|\n"
    )
    for word, meaning in sorted(WORDS.items()):
        fields = FIELDS.get(word, (word,) if "_" in word else ())
        text += _row(word, meaning, ", ".join(f"`{name}`" for name in fields))
    return MADE + text


PAGES = {"cli": cli, "http": http, "settings": settings, "glossary": glossary}

if __name__ == "__main__":
    for name, make in PAGES.items():
        (DOCS / f"{name}.md").write_text(make().rstrip() + "\n", encoding="utf-8")
