"""Settings: environment (``CLAW_STUDIO_*``), then ``studio.toml``, then the defaults here.

The Settings page shows every field with its source. ``data_dir`` holds the journal, the pool and exports.
"""

from __future__ import annotations

import os
import re
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

ENV_PREFIX = "CLAW_STUDIO_"
TOML_NAME = "studio.toml"
LOGIN = re.compile(r"(?<=://)[^/,]*@")
"""``user:password@`` in the address of an engine."""
STREAMING = "^(auto|whole|relay)$"


Names = Annotated[tuple[str, ...], NoDecode]
"""In the environment: names with commas between."""


def is_loopback(host: str) -> bool:
    """True for the names and addresses at which a machine reaches itself and nobody else does."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


class EngineConfig(BaseModel):
    """One more policy engine: ``[[engines]]`` in ``studio.toml``, or a JSON list in ``CLAW_STUDIO_ENGINES``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1, description="As records and pages spell it")
    base_url: str = Field(description="OpenAI-compatible base URL, or 'litellm:provider/model'")
    models: tuple[str, ...] = Field(("*",), min_length=1, description="Globs of the model names that it serves")
    api_key_env: str | None = Field(None, description="Name of the environment variable that holds its key")
    streaming: str = Field("auto", pattern=STREAMING, description="See engine_streaming")
    concurrency: int | None = Field(None, ge=1, description="See engine_concurrency")
    replica_of: str | None = Field(None, description="Name of the engine that it shares the calls of")


class Settings(BaseSettings):
    """Everything a user can set. Constructor arguments win over environment, environment over file."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, extra="forbid", frozen=True)

    data_dir: Path = Field(Path(".data"), description="Folder of journal, pool and exports")
    host: str = Field("127.0.0.1", description="Address the gateway listens on")
    port: int = Field(8100, ge=0, le=65535, description="Port of the gateway; 0 picks a free one")
    gateways: int = Field(
        1, ge=1, le=64, description="Gateway processes that share the port and the journal; 1 takes calls in this one"
    )
    engine: str = Field(
        "local",
        description="Policy engine: 'local' (the embedded model), an OpenAI-compatible base URL (or several of one "
        "model, with commas between them), or 'litellm:provider/model'",
    )
    engines: tuple[EngineConfig, ...] = Field((), description="More engines, for the model names that they serve")
    engine_streaming: str = Field(
        "auto",
        pattern=STREAMING,
        description="auto: an engine's own stream goes to the agent where ids and log-probs survive it; "
        "whole: streams are made from the whole answer; relay: always the engine's own",
    )
    engine_concurrency: int | None = Field(
        None,
        ge=1,
        description="Most calls of a gateway process at one engine; more wait in line, and get 503 where it is full",
    )
    engine_api_key_env: str = Field(
        "CLAW_STUDIO_ENGINE_API_KEY",
        description="Name of the environment variable that holds the engine's key",
    )
    engine_timeout_s: float = Field(900.0, gt=0, description="Longest wait for one answer, seconds")
    engine_first_byte_timeout_s: float | None = Field(
        None, gt=0, description="Longest wait for the first word of a stream, seconds; None: as for the whole answer"
    )
    engine_idle_timeout_s: float = Field(
        300.0, gt=0, description="Longest silence of an engine in the middle of a stream, seconds"
    )
    max_answer_bytes: int = Field(
        256 << 20, ge=1 << 10, description="Most of one answer of an engine; what came of a longer stream is kept"
    )
    max_answer_head_bytes: int = Field(256 << 10, ge=1 << 10, description="Most of one answer's headers")
    max_aside_bytes: int = Field(
        32 << 20, ge=1 << 10, description="Most of what else an engine says: its models, its version, a prompt's tokens"
    )
    api_key: str | None = Field(
        None,
        min_length=1,
        description="The admin key: with it every call needs a key, this one or, for model calls, a session's. "
        "Needed, with 16 characters or more, when host is not loopback; the pages ask for it when theirs is not",
    )
    allowed_hosts: Names = Field(
        (),
        description="Host names that requests may be for, besides loopback's and the bound address: what a proxy in "
        "front is called. *.example.org takes all below it",
    )
    cors_origins: Names = Field(
        (),
        description="Origins (https://chat.example.org) whose pages may make model calls from a browser; the admin API "
        "answers none",
    )
    tls_cert: Path | None = Field(None, description="Certificate chain (PEM) of the gateway; with it it speaks HTTPS")
    tls_key: Path | None = Field(None, description="The certificate's private key (PEM)")
    max_body_bytes: int = Field(
        256 << 20,
        ge=1 << 10,
        description="Largest body of a request, also decompressed, bytes; 413 beyond",
    )
    max_header_bytes: int = Field(
        64 << 10, ge=1 << 10, description="Most of a request's headers, its first line included, bytes; 431 beyond"
    )
    header_timeout_s: float = Field(30.0, gt=0, description="Longest wait for a request's headers, seconds; then 408")
    body_timeout_s: float = Field(
        120.0,
        gt=0,
        description="Longest wait for a request's body, seconds, and a second more for each 4 KiB of it; then 408. "
        "A client that takes nothing of its answer for so long is cut off",
    )
    idle_timeout_s: float = Field(
        75.0, gt=0, description="Connections without a request are closed after so long, seconds"
    )
    max_connections: int = Field(
        8192,
        ge=8,
        description="Most connections of a gateway process, or half of the files that it may have open; beyond "
        "them those that wait longest make room, then callers get 503",
    )
    response_length: int = Field(1024, ge=1, description="Longest answer of POST /generate that names none, tokens")
    capture: str = Field(
        "strict",
        pattern="^(strict|best_effort)$",
        description="strict: a call that can't be stored fails; best_effort: it passes and is counted as dropped",
    )
    channel: str = Field("train", description="Channel of calls that name none")
    policy_sync_timeout_s: float = Field(
        120.0, gt=0, description="After so long a weight sync that nobody finishes holds no call any more, seconds"
    )
    log_format: str = Field("text", pattern="^(text|json)$", description="Lines on stderr: for people, or JSON objects")
    segment_bytes: int = Field(256 << 20, ge=1 << 16, description="Journal segment size, bytes")
    pool_memory: str = Field("2GB", description="DuckDB's memory limit")
    pool_threads: int = Field(2, ge=1, description="DuckDB's worker threads")
    trash_days: float = Field(
        1.0, ge=0, description="How long deleted steps and journal segments can be restored, days"
    )
    tokenizers: dict[str, Path] = Field(
        {},
        description="For engines that answer in text only: model name or pattern (gpt-*) -> folder with tokenizer.json "
        "and chat_template.jinja; such steps get ids that are marked retokenized, and no log-probs",
    )
    local_model_dir: Path | None = Field(
        None, description="Weights folder of the embedded engine; None makes a seeded one in data_dir/model"
    )

    @field_validator("allowed_hosts", "cors_origins", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return [name.strip() for name in value.split(",") if name.strip()] if isinstance(value, str) else value

    @field_validator("allowed_hosts")
    @classmethod
    def _are_names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            plain = name.removeprefix("*.")
            # Only the numbers of IPv6 hold colons.
            if not plain or set(plain) & set("*/@?#[], ") or plain.count(":") == 1:
                raise ValueError(f"{name!r} is no host name: without scheme and port, *. only in front")
        return tuple(name.lower().rstrip(".") for name in names)

    @field_validator("cors_origins")
    @classmethod
    def _are_origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        for origin in origins:
            scheme, separator, rest = origin.partition("://")
            if not (scheme and separator and rest) or set(rest) & set("*/@?# "):
                raise ValueError(f"{origin!r} is no origin: scheme://host or scheme://host:port, each by itself")
        return origins

    @model_validator(mode="after")
    def _certificate_has_key(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key belong together")
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Order the sources; the file is ``$CLAW_STUDIO_CONFIG`` or ``studio.toml`` in the working folder."""
        toml = Path(os.environ.get(ENV_PREFIX + "CONFIG", TOML_NAME))
        return (init_settings, env_settings, TomlConfigSettingsSource(settings_cls, toml))

    @property
    def journal_dir(self) -> Path:
        """Folder of the append-only segments."""
        return self.data_dir / "journal"

    @property
    def opinions_dir(self) -> Path:
        """Folder of the opinions log: what the pool holds and the journal doesn't."""
        return self.data_dir / "opinions"

    @property
    def trash_dir(self) -> Path:
        """Folder of what was deleted and can still be restored."""
        return self.data_dir / "trash"

    @property
    def pool_path(self) -> Path:
        """The DuckDB file."""
        return self.data_dir / "pool.duckdb"

    @property
    def export_dir(self) -> Path:
        """Folder that exporters write to."""
        return self.data_dir / "exports"

    @property
    def is_loopback(self) -> bool:
        """True when only this machine can reach the gateway."""
        return is_loopback(self.host)

    @property
    def tls(self) -> tuple[Path, Path] | None:
        """The gateway's certificate chain and private key."""
        return None if self.tls_cert is None or self.tls_key is None else (self.tls_cert, self.tls_key)

    @property
    def scheme(self) -> str:
        """How the gateway is spoken to: ``http`` or ``https``."""
        return "http" if self.tls_cert is None else "https"

    def public(self) -> dict[str, Any]:
        """All fields for display, secrets reduced to whether they are set."""
        shown = self.model_dump(mode="json")
        shown["api_key"] = "set" if self.api_key else "not set"
        for place in (shown, *shown["engines"]):
            name = "engine" if "engine" in place else "base_url"
            place[name] = LOGIN.sub("", place[name])
        return shown
