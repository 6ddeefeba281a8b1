"""Settings, read from the environment (``CLAW_STUDIO_*``), then ``studio.toml``, then the defaults in this file.

The Settings page shows every field with its source.
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
"""Names; in the environment separated by commas."""


def is_loopback(host: str) -> bool:
    """Whether a host name or address is loopback, and so reachable only from this machine."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


class EngineConfig(BaseModel):
    """An additional policy engine: ``[[engines]]`` in ``studio.toml``, or a JSON list in ``CLAW_STUDIO_ENGINES``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1, description="Name in records and on pages")
    base_url: str = Field(description="OpenAI-compatible base URL, or 'litellm:provider/model'")
    models: tuple[str, ...] = Field(("*",), min_length=1, description="Globs of the model names that it serves")
    api_key_env: str | None = Field(None, description="Name of the environment variable that holds its key")
    streaming: str = Field("auto", pattern=STREAMING, description="See engine_streaming")
    concurrency: int | None = Field(None, ge=1, description="See engine_concurrency")
    replica_of: str | None = Field(None, description="Name of the engine whose calls it shares")
    weights_hook: str | None = Field(None, pattern="^https?://", description="See engine_weights_hook")


class Settings(BaseSettings):
    """All settings. Constructor arguments take precedence over the environment, and the environment over the file."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, extra="forbid", frozen=True)

    data_dir: Path = Field(Path(".data"), description="Folder of journal, pool and exports")
    host: str = Field("127.0.0.1", description="Address that the gateway listens on")
    port: int = Field(8100, ge=0, le=65535, description="Port of the gateway; 0 picks a free one")
    gateways: int = Field(
        1,
        ge=0,
        le=64,
        description="Number of processes that take calls, beside the main process; 0: the main process takes them",
    )
    engine: str = Field(
        "local",
        description="Policy engine: 'local' (the embedded model), an OpenAI-compatible base URL (or several that serve "
        "the same model, separated by commas), or 'litellm:provider/model'",
    )
    engines: tuple[EngineConfig, ...] = Field((), description="Additional engines, selected by model name")
    engine_streaming: str = Field(
        "auto",
        pattern=STREAMING,
        description="auto: relay the engine's stream if ids and log-probs are complete in it; "
        "whole: make streams from the complete answer; relay: always relay the engine's stream",
    )
    engine_concurrency: int | None = Field(
        None,
        ge=1,
        description="Most concurrent calls of a gateway process to one engine; more wait in a queue. If the queue is "
        "full, calls get 503",
    )
    engine_api_key_env: str = Field(
        "CLAW_STUDIO_ENGINE_API_KEY",
        description="Name of the environment variable that holds the engine's key",
    )
    engine_weights_hook: str | None = Field(
        None,
        pattern="^https?://",
        description="URL that loads new weights into the engine. A weight sync posts {path, policy_version, engine} to "
        "it and expects {policy_version}. Not needed for the embedded engine, vLLM and SGLang",
    )
    engine_timeout_s: float = Field(900.0, gt=0, description="Timeout of one engine call, seconds")
    engine_first_byte_timeout_s: float | None = Field(
        None, gt=0, description="Timeout for the first bytes of a stream, seconds; None: engine_timeout_s"
    )
    engine_idle_timeout_s: float = Field(300.0, gt=0, description="Longest pause in a stream of an engine, seconds")
    max_answer_bytes: int = Field(
        256 << 20,
        ge=1 << 10,
        description="Largest answer of an engine, bytes; of a longer stream, the part up to the limit is stored",
    )
    max_answer_head_bytes: int = Field(
        256 << 10, ge=1 << 10, description="Largest headers of an engine's answer, bytes"
    )
    max_aside_bytes: int = Field(
        32 << 20, ge=1 << 10, description="Largest other response of an engine, bytes: models, version, tokenization"
    )
    api_key: str | None = Field(
        None,
        min_length=1,
        description="The admin key. If set, every request needs it; model calls may use a session key instead. "
        "Required, with at least 16 characters, if host is not loopback. Pages require it if their address is not "
        "loopback",
    )
    allowed_hosts: Names = Field(
        (),
        description="Accepted host names of requests, besides loopback names and the bound address; for example the "
        "name of a reverse proxy. *.example.org accepts all its subdomains",
    )
    cors_origins: Names = Field(
        (),
        description="Origins (https://chat.example.org) whose pages may make model calls from a browser. The admin API "
        "accepts none",
    )
    tls_cert: Path | None = Field(None, description="Certificate chain (PEM) of the gateway; turns on HTTPS")
    tls_key: Path | None = Field(None, description="The certificate's private key (PEM)")
    max_body_bytes: int = Field(
        256 << 20,
        ge=1 << 10,
        description="Largest body of a request, compressed or decompressed, bytes; larger ones get 413",
    )
    max_header_bytes: int = Field(
        64 << 10, ge=1 << 10, description="Largest headers of a request with its first line, bytes; larger ones get 431"
    )
    header_timeout_s: float = Field(30.0, gt=0, description="Timeout for a request's headers, seconds; then 408")
    body_timeout_s: float = Field(
        120.0,
        gt=0,
        description="Timeout for a request's body, seconds, plus one second per 4 KiB; then 408. Also the timeout for "
        "a client that does not read its response; then the connection is closed",
    )
    idle_timeout_s: float = Field(75.0, gt=0, description="Idle connections are closed after this time, seconds")
    max_connections: int = Field(
        8192,
        ge=8,
        description="Most connections of a gateway process; at most half of its limit of open files. Beyond it, the "
        "connections that are idle longest are closed; if none is idle, callers get 503",
    )
    response_length: int = Field(1024, ge=1, description="Default answer length of POST /generate, tokens")
    capture: str = Field(
        "strict",
        pattern="^(strict|best_effort)$",
        description="strict: a call that can't be stored fails; best_effort: it succeeds and is counted as dropped",
    )
    channel: str = Field("train", description="Channel of calls without one")
    policy_sync_timeout_s: float = Field(
        120.0, gt=0, description="Time after which an unfinished weight sync no longer holds calls back, seconds"
    )
    log_format: str = Field("text", pattern="^(text|json)$", description="Format of log lines on stderr")
    segment_bytes: int = Field(256 << 20, ge=1 << 16, description="Journal segment size, bytes")
    journal_target: str = Field(
        "local",
        description="Where calls are copied before they are answered, so that they survive the loss of the disk: "
        "'local' (nowhere), the absolute path of a folder on a shared file system, or an object store's URL "
        "(s3://bucket/path) that no other studio uses",
    )
    journal_target_options: dict[str, Any] = Field(
        {}, description="Arguments of the object store's fsspec file system, for example endpoint_url; without secrets"
    )
    cluster_listen: str | None = Field(
        None,
        description="Address, host:port, on which node agents of other machines connect, in a network that only the "
        "cluster can reach; None: one machine. 'claw-studio cluster up' sets it",
    )
    cluster_token: str | None = Field(
        None,
        min_length=16,
        description="Secret by which node agents prove that they belong to this studio. Required with cluster_listen",
    )
    node_gateways: int = Field(1, ge=1, le=64, description="Gateway processes on each other machine of the cluster")
    node_host: str = Field(
        "local",
        pattern="^(local|node)$",
        description="Where gateways of other machines listen: local (127.0.0.1), or node (the machine's address, for "
        "agents in containers or elsewhere; needs api_key)",
    )
    node_port: int = Field(8100, ge=0, le=65535, description="Their port, the same on each machine")
    pool_memory: str = Field("2GB", description="DuckDB's memory limit")
    pool_threads: int = Field(2, ge=1, description="DuckDB's worker threads")
    trash_days: float = Field(
        1.0, ge=0, description="Time for which deleted steps and journal segments can be restored, days"
    )
    workspace_days: float | None = Field(
        None, gt=0, description="Time for which final workspaces of rollouts are kept, days; None: no limit"
    )
    workspace_gib: float | None = Field(
        10.0, gt=0, description="Size of all kept workspaces, GiB; the oldest are removed first; None: no limit"
    )
    tokenizers: dict[str, Path] = Field(
        {},
        description="For engines that return only text: model name or pattern (gpt-*) -> folder with tokenizer.json "
        "and chat_template.jinja. Token ids of such steps are marked retokenized and have no log-probs",
    )
    verifier_callbacks: dict[str, str] = Field(
        {},
        description="Services that score attempts: name -> URL. The verifier http_callback posts the workspace to it; "
        "tasks and requests can only give the name",
    )
    local_model_dir: Path | None = Field(
        None, description="Weights folder of the embedded engine; None: a seeded model is created in data_dir/model"
    )
    local_threads: int = Field(2, ge=1, le=256, description="Computing threads of the embedded engine")
    local_sequences: int = Field(16, ge=1, le=4096, description="Most sequences that the embedded engine runs at once")
    local_context: int | None = Field(
        None,
        ge=16,
        description="Longest prompt with answer of the embedded engine, tokens; None: as long as the model allows",
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
            # Only IPv6 addresses contain several colons.
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

    @field_validator("verifier_callbacks")
    @classmethod
    def _are_urls(cls, callbacks: dict[str, str]) -> dict[str, str]:
        for name, address in callbacks.items():
            if not re.match(r"https?://[^/\s]+", address):
                raise ValueError(f"{name} has the address {address!r}, which is no URL: http:// or https://")
        return callbacks

    @field_validator("cluster_listen", mode="before")
    @classmethod
    def _is_address(cls, value: Any) -> Any:
        if isinstance(value, str) and not re.fullmatch(r".+:\d{1,5}", value):
            raise ValueError(f"{value!r} is no address: host:port")
        return value

    @model_validator(mode="after")
    def _cluster_is_whole(self) -> Self:
        if self.cluster_listen is not None and self.cluster_token is None:
            raise ValueError("cluster_listen needs cluster_token")
        if self.cluster_listen is not None and self.gateways == 0:
            raise ValueError("a cluster needs gateways of at least 1")
        return self

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
        """The order of sources. The file is ``$CLAW_STUDIO_CONFIG``, or ``studio.toml`` in the working directory."""
        toml = Path(os.environ.get(ENV_PREFIX + "CONFIG", TOML_NAME))
        return (init_settings, env_settings, TomlConfigSettingsSource(settings_cls, toml))

    @property
    def journal_dir(self) -> Path:
        """Folder of the append-only segments."""
        return self.data_dir / "journal"

    @property
    def opinions_dir(self) -> Path:
        """Folder of the opinions log, which records the pool's data that is not in the journal."""
        return self.data_dir / "opinions"

    @property
    def trash_dir(self) -> Path:
        """Folder of deleted data that can still be restored."""
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
    def packs_dir(self) -> Path:
        """Folder of stored pack versions."""
        return self.data_dir / "packs"

    @property
    def rollouts_dir(self) -> Path:
        """Folder of runs of rollouts: settings, attempts, the agents' output."""
        return self.data_dir / "rollouts"

    @property
    def synthesis_dir(self) -> Path:
        """Folder of runs of the synthesis: settings, prompts, the log of calls and rows."""
        return self.data_dir / "synthesis"

    @property
    def workspaces_dir(self) -> Path:
        """Folder of the final workspaces of attempts."""
        return self.data_dir / "workspaces"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the gateway."""
        return is_loopback(self.host)

    @property
    def tls(self) -> tuple[Path, Path] | None:
        """The gateway's certificate chain and private key."""
        return None if self.tls_cert is None or self.tls_key is None else (self.tls_cert, self.tls_key)

    @property
    def cluster_address(self) -> tuple[str, int]:
        """Host and port of ``cluster_listen``."""
        host, _, port = (self.cluster_listen or ":0").rpartition(":")
        return host.strip("[]"), int(port)

    def engine_keys(self) -> dict[str, str]:
        """The environment variables that hold the engines' keys, those that are set."""
        names = {self.engine_api_key_env, *(one.api_key_env for one in self.engines if one.api_key_env)}
        return {name: os.environ[name] for name in sorted(names) if name in os.environ}

    @property
    def scheme(self) -> str:
        """URL scheme of the gateway: ``http`` or ``https``."""
        return "http" if self.tls_cert is None else "https"

    def public(self) -> dict[str, Any]:
        """All fields for display; secrets are replaced by ``set`` or ``not set``."""
        shown = self.model_dump(mode="json")
        for secret in ("api_key", "cluster_token"):
            shown[secret] = "set" if shown[secret] else "not set"
        for place in (shown, *shown["engines"]):
            name = "engine" if "engine" in place else "base_url"
            place[name] = LOGIN.sub("", place[name])
        return shown
