"""Settings: environment (``CLAW_STUDIO_*``), then ``studio.toml``, then the defaults here.

The Settings page shows every field with its source. ``data_dir`` holds the journal, the pool and exports.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

ENV_PREFIX = "CLAW_STUDIO_"
TOML_NAME = "studio.toml"
STREAMING = "^(auto|whole|relay)$"


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
    api_key: str | None = Field(None, description="Key that every call must carry; needed when host is not loopback")
    response_length: int = Field(1024, ge=1, description="Longest answer of POST /generate that names none, tokens")
    capture: str = Field(
        "strict",
        pattern="^(strict|best_effort)$",
        description="strict: a call that can't be stored fails; best_effort: it passes and is counted as dropped",
    )
    channel: str = Field("train", description="Channel of calls that name none")
    log_format: str = Field("text", pattern="^(text|json)$", description="Lines on stderr: for people, or JSON objects")
    segment_bytes: int = Field(256 << 20, ge=1 << 16, description="Journal segment size, bytes")
    pool_memory: str = Field("2GB", description="DuckDB's memory limit")
    pool_threads: int = Field(2, ge=1, description="DuckDB's worker threads")
    tokenizers: dict[str, Path] = Field(
        {},
        description="For engines that answer in text only: model name or pattern (gpt-*) -> folder with tokenizer.json "
        "and chat_template.jinja; such steps get ids that are marked retokenized, and no log-probs",
    )
    local_model_dir: Path | None = Field(
        None, description="Weights folder of the embedded engine; None makes a seeded one in data_dir/model"
    )

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
        return self.host in {"127.0.0.1", "localhost", "::1"}

    def public(self) -> dict[str, Any]:
        """All fields for display, secrets reduced to whether they are set."""
        shown = self.model_dump(mode="json")
        shown["api_key"] = "set" if self.api_key else "not set"
        return shown
